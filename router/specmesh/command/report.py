"""A generation as one JSON object, and what each arm did in it, as a table a person likes to read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.duration_pb2 import Duration
from rich import box
from rich.table import Table

from specmesh.client import Generation
from specmesh.v1 import router_service_pb2 as pb

PARTS = ("total", "draft", "network", "queue", "forward", "verify", "router")
PLAIN = "plain decoding"


def milliseconds(duration: Duration) -> float:
    """A duration of the protocol."""
    return float(duration.seconds * 1e3 + duration.nanos / 1e6)


def generation_json(generation: Generation) -> dict[str, Any]:
    """text, token_ids, finish_reason, usage, steps; enum values without their prefix."""
    finished, started = generation.finished, generation.started
    return {
        "text": generation.text,
        "token_ids": list(generation.token_ids),
        "finish_reason": finished.finish_reason if finished else None,
        "stop_matched": finished.stop_matched if finished else "",
        "model": started.model if started else "",
        "request_id": started.request_id if started else "",
        "rule": started.rule if started else "",
        "seed": started.seed if started else None,
        "usage": usage_json(finished.usage) if finished else None,
        "logprobs": [_logprob_json(logprob) for logprob in generation.logprobs],
        "steps": [step_json(step) for step in generation.steps],
    }


def usage_json(usage: pb.Usage) -> dict[str, Any]:
    """Tokens and device time."""
    return {
        "input_tokens": usage.input_token_count,
        "cached_input_tokens": usage.cached_input_token_count,
        "output_tokens": usage.output_token_count,
        "drafted": usage.drafted_token_count,
        "accepted": usage.accepted_token_count,
        "steps": usage.step_count,
        "device_ms": {pool.pool: milliseconds(pool.device_time) for pool in usage.pools},
    }


def step_json(step: pb.StepReport) -> dict[str, Any]:
    """One step; `arm` is null for plain decoding."""
    reason = pb.FallbackReason.Name(step.fallback_reason).removeprefix("FALLBACK_REASON_")
    return {
        "arm": step.arm or None,
        "drafted": step.drafted_count,
        "accepted": step.accepted_count,
        "emitted": step.emitted_count,
        "reward": step.reward if step.HasField("reward") else None,
        "predicted": step.predicted,
        "fallback_reason": None if reason == "UNSPECIFIED" else reason,
        "ms": {part: round(milliseconds(getattr(step.timing, part)), 4) for part in PARTS},
    }


def _logprob_json(logprob: pb.TokenLogprob) -> dict[str, Any]:
    top = [{"token_id": token.token_id, "logprob": token.logprob} for token in logprob.top]
    return {"logprob": logprob.logprob, "top": top}


@dataclass(slots=True)
class ArmTotals:
    """What one arm did over many steps."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def add(self, step: pb.StepReport) -> None:
        """Count one step in."""
        self.steps += 1
        self.drafted += step.drafted_count
        self.accepted += step.accepted_count
        self.emitted += step.emitted_count
        for part in PARTS:
            self.ms[part] += milliseconds(getattr(step.timing, part))

    def as_json(self) -> dict[str, Any]:
        """Sums, and what follows from them."""
        return {
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "emitted": self.emitted,
            "reward": self.accepted / self.drafted if self.drafted else None,
            "tokens_per_second": self.emitted / self.ms["total"] * 1e3 if self.ms["total"] else None,
            "ms": {part: round(value, 3) for part, value in self.ms.items()},
        }


def totals_by_arm(steps: Iterable[pb.StepReport]) -> dict[str, ArmTotals]:
    """By arm name, the most used first; plain decoding is an arm of its own."""
    totals: dict[str, ArmTotals] = {}
    for step in steps:
        totals.setdefault(step.arm or PLAIN, ArmTotals()).add(step)
    return dict(sorted(totals.items(), key=lambda item: -item[1].steps))


def arm_table(totals: dict[str, ArmTotals]) -> Table:
    """One line an arm."""
    table = Table(
        title="What each arm did", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("arm", no_wrap=True)
    for name in ("steps", "drafted", "accepted", "kept", "tok/step", "ms/step", "draft", "forward"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, total in totals.items():
        table.add_row(name, *_cells(total))
    return table


def _cells(total: ArmTotals) -> Sequence[str]:
    per_step = {part: total.ms[part] / total.steps for part in PARTS}
    return (
        str(total.steps),
        str(total.drafted),
        str(total.accepted),
        f"{total.accepted / total.drafted:.0%}" if total.drafted else "-",
        f"{total.emitted / total.steps:.2f}",
        *(f"{per_step[part]:.1f}" for part in ("total", "draft", "forward")),
    )

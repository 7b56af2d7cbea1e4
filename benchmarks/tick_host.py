"""What the engine's thread does in a tick besides computing: choosing, making room, committing, answering.

The backend keeps the block tables of the real one and computes nothing: every drafted token is accepted. Microseconds
of a tick's Python by number of sessions, each with 4 drafted tokens, without what the event loop does (frames, gRPC).
Processor time of this thread: medians, and the lower quartile, which a machine that others use disturbs less. Prints
JSON.

    python benchmarks/tick_host.py --sessions 1 8 64 128
"""

import argparse
import json
import time
from collections.abc import Sequence
from statistics import quantiles

import numpy as np
from measure import machine

from specmesh.kernels.inputs import VerifyOutcome
from specmesh.runtime.types import Rule, Sampling, SessionSpec
from specmesh.verifier.admission import Opening
from specmesh.verifier.backend import Verified, Work
from specmesh.verifier.batcher import TickLimits
from specmesh.verifier.core import Core
from specmesh.verifier.entries import EntryLimits
from specmesh.verifier.outbox import Outbox
from specmesh.verifier.paged import PagedBackend
from specmesh.verifier.session import NEVER_NS, Answer, Entry
from specmesh.verifier.target import TableTarget

DRAFTED = 4
CONTEXT = 512


class FreeBackend(PagedBackend):
    """Spans and block tables as ever; `computed_ns`: time that is the backend's own and not the tick's Python."""

    computed_ns = 0

    def _verify(self, batch: Sequence[Work]) -> Verified:
        for work in batch:
            self._span(work)
        started = time.thread_time_ns()
        outcomes = [
            VerifyOutcome(len(work.verify.draft_token_ids), 3, finite=True) for work in batch if work.verify is not None
        ]
        self.computed_ns += time.thread_time_ns() - started
        return Verified(outcomes)


class Unread:
    """A peer's stream whose answers nobody reads."""

    peer = "router"

    def deliver(self, answers: Sequence[Answer]) -> None:
        """Dropped."""


def main() -> None:
    """All sizes."""
    options = _options()
    results = [{"sessions": count, **measure(count, options.rounds)} for count in options.sessions]
    print(json.dumps({"machine": machine(), "drafted": DRAFTED, "results": results}, indent=2))


def measure(count: int, rounds: int) -> dict[str, float]:
    """Microseconds of one tick, and of taking the entries that it serves."""
    core, backend, stream = _engine(count, rounds)
    ticks, submits = [], []
    for _ in range(rounds):
        started = time.thread_time_ns()
        for session in list(core.sessions.values()):
            core.submit(session, Entry(stream, session.position, (3,) * DRAFTED, (), None, 0))
        submits.append(time.thread_time_ns() - started)
        backend.computed_ns = 0
        core.outbox = Outbox()
        started = time.thread_time_ns()
        core.tick()
        ticks.append(time.thread_time_ns() - started - backend.computed_ns)
    return {**_summary("tick", ticks), **_summary("submit", submits)}


def _summary(name: str, times_ns: Sequence[int]) -> dict[str, float]:
    quarter, half, _ = quantiles(times_ns)
    return {f"{name}_us": round(half / 1e3, 1), f"{name}_p25_us": round(quarter / 1e3, 1)}


def _engine(count: int, rounds: int) -> tuple[Core, FreeBackend, Unread]:
    limit = CONTEXT + (rounds + 2) * (DRAFTED + 1)
    target = TableTarget(np.zeros((8, 8, 8), np.float32), max_context_tokens=limit + 16)
    backend = FreeBackend(target, num_blocks=count * (limit // 16 + 4), max_context_tokens=limit + 16)
    core = Core(
        backend,
        limits=TickLimits(max_verify_rows=count * (DRAFTED + 1), max_prefill_tokens=count * CONTEXT),
        entry_limits=EntryLimits(),
        max_waiting_sessions=8,
        clock=time.monotonic_ns,
    )
    stream = Unread()
    for index in range(count):
        core.open(Opening(_spec(index, limit), lambda error: None, NEVER_NS))
    while core.has_work:
        core.tick()
    return core, backend, stream


def _spec(index: int, limit: int) -> SessionSpec:
    return SessionSpec(
        session_id=index, peer="router", context=(index % 7,) * CONTEXT, prompt_length=CONTEXT,
        sampling=Sampling(temperature=0.7), rule=Rule.COUPLED, verify_key=index, draft_key=index,
        max_output_tokens=limit - CONTEXT, lease_ms=600_000,
    )  # fmt: skip


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", nargs="+", type=int, default=[1, 8, 64, 128])
    parser.add_argument("--rounds", type=int, default=60)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""`specmesh demo`: a mesh of real models at work on prose, code and a chat, with drafts and without."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from specmesh.client import AsyncClient, Generation, Options, Prompt
from specmesh.command.demo_assets import demo_model
from specmesh.command.generate import collect, summary
from specmesh.command.mesh_check import check_mesh, mesh_given
from specmesh.command.report import arm_table, generation_json, milliseconds, totals_by_arm
from specmesh.command.up import run_guarded, started_mesh
from specmesh.command.working import working
from specmesh.v1 import router_service_pb2 as pb

PROMPTS: Mapping[str, Prompt] = {
    "prose": "Photosynthesis is the process by which plants",
    "code": """def binary_search(items, target):
    \"\"\"Return the index of target in a sorted list, or -1.\"\"\"
    low, high = 0, len(items) - 1
""",
    "chat": [("user", "Explain in a few sentences why the sky is blue.")],
}
PARTING = (
    "Texts may differ where the target runs in bfloat16: its logits depend a little on the batch, so that a near-tie "
    "can fall otherwise. In float32 on a CPU they are the same."
)
WARM_UP_TOKENS = 8
TIMEOUT_SECONDS = 600.0


@dataclass(slots=True)
class Run:
    """One prompt, generated with drafts and without."""

    name: str
    generation: Generation
    baseline: Generation

    @property
    def speeds(self) -> tuple[float, float]:
        """Tokens per second with drafts and without."""
        return tokens_per_second(self.generation), tokens_per_second(self.baseline)

    @property
    def parting(self) -> int | None:
        """Index of the first token that differs between the two, None where none does."""
        drafted, plain = self.generation.token_ids, self.baseline.token_ids
        if drafted == plain:
            return None
        pairs = enumerate(zip(drafted, plain, strict=False))
        return next((at for at, (one, other) in pairs if one != other), min(len(drafted), len(plain)))


@dataclass(slots=True)
class Demo:
    """All runs so far."""

    runs: list[Run] = field(default_factory=list)

    def steps(self) -> list[pb.StepReport]:
        """Of the generations with drafts."""
        return [step for run in self.runs for step in run.generation.steps]

    def as_json(self) -> dict[str, Any]:
        """What `build/demo.json` holds."""
        with_drafts = [run.generation for run in self.runs]
        return {
            "prompts": {run.name: _run_json(run) for run in self.runs},
            "arms": {name: total.as_json() for name, total in totals_by_arm(self.steps()).items()},
            "tokens_per_second": {
                "with_drafts": overall_speed(with_drafts),
                "without_drafts": overall_speed([run.baseline for run in self.runs]),
            },
        }


def _run_json(run: Run) -> dict[str, Any]:
    drafted, plain = run.speeds
    return generation_json(run.generation) | {
        "tokens_per_second": {"with_drafts": drafted, "without_drafts": plain},
        "without_drafts": {
            "text": run.baseline.text,
            "same_token_ids": run.parting is None,
        },
    }


def tokens_per_second(generation: Generation) -> float:
    """Of its steps, prefill aside."""
    return overall_speed([generation])


def overall_speed(generations: list[Generation]) -> float:
    """Sum of tokens over sum of time; the first step waits for the prompt's prefill and is left out."""
    steps = [step for generation in generations for step in generation.steps[1:]]
    seconds = sum(milliseconds(step.timing.total) for step in steps) / 1e3
    return sum(step.emitted_count for step in steps) / seconds if seconds else 0.0


async def run_prompts(client: AsyncClient, max_tokens: int, output: Console, progress: Console) -> Demo:
    """Every prompt with drafts, its text as it comes, then without."""
    demo = Demo()
    options: Options = {"max_output_tokens": max_tokens, "temperature": 0.0, "step_reports": True}
    with working(progress, "warming up"):
        short: Options = {"max_output_tokens": WARM_UP_TOKENS, "temperature": 0.0}
        await client.generate("Hello", **short)
        await client.generate("Hello", **_plain(short))
    for name, prompt in PROMPTS.items():
        output.print(Rule(f"{name}, with drafts", align="left"))
        generation = await _shown_generation(client, prompt, options, output, progress)
        output.print()
        if generation.finished:
            output.print(summary(generation, generation.finished), style="cyan", highlight=False)
        with working(progress, f"{name}, the same without drafts"):
            baseline = await client.generate(prompt, **_plain(options))
        demo.runs.append(Run(name, generation, baseline))
    return demo


async def _shown_generation(
    client: AsyncClient, prompt: Prompt, options: Options, output: Console, progress: Console
) -> Generation:
    """Prompt and text, from the first token on."""
    shown = False

    def show(text: str) -> None:
        nonlocal shown
        if not shown:
            shown = True
            arrived()
            output.print(_shown(prompt), style="dim", end="", markup=False, highlight=False, soft_wrap=True)
        output.out(text, end="", highlight=False)
        output.file.flush()

    with working(progress, "waiting for the first token") as arrived:
        return await collect(client, prompt, show, options)


def _plain(options: Options) -> Options:
    return {**options, "draft_mode": "OFF"}


def _shown(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else f"{prompt[-1][1]}\n"  # type: ignore[index]


def show_results(demo: Demo, output: Console) -> None:
    """Per arm, and tokens per second with drafts and without."""
    output.print()
    output.print(arm_table(totals_by_arm(demo.steps())))
    table = Table("prompt", title="Tokens per second, greedy", title_justify="left", title_style="bold")
    for name in ("with drafts", "without", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("both texts")
    for run in demo.runs:
        drafted, plain = run.speeds
        texts = "the same" if run.parting is None else f"differ from token {run.parting + 1}"
        ratio = f"{drafted / plain:.2f}" if plain else "-"
        table.add_row(run.name, f"{drafted:.1f}", f"{plain:.1f}", ratio, texts)
    output.print(table)
    if any(run.parting is not None for run in demo.runs):
        output.print(PARTING, style="dim", highlight=False)


def write_json(demo: Demo, path: Path) -> None:
    """Make the folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(demo.as_json(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


async def demonstrate(path: Path, max_tokens: int, output: Console, progress: Console) -> None:
    """The whole demo. Raises `ServiceEnded`, `ConfigError`, `SpecMeshError`."""
    config, _ = check_mesh(mesh_given(None, 0, None, os.environ), os.environ)
    demo_model(progress)
    async with (
        started_mesh(config, progress, show_log=False) as mesh,
        AsyncClient(mesh.address, timeout=TIMEOUT_SECONDS) as client,
    ):
        demo = await mesh.unless_one_ends(run_prompts(client, max_tokens, output, progress))
    show_results(demo, output)
    write_json(demo, path)
    output.print(
        f"\nWritten to {path}. Next: `specmesh up` in one terminal, `specmesh generate PROMPT` in another.",
        soft_wrap=True,
    )


def run_demo(path: Path, max_tokens: int, output: Console, progress: Console) -> int:
    """`specmesh demo`; its exit status."""
    return run_guarded(demonstrate(path, max_tokens, output, progress), progress)

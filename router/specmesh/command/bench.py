"""`specmesh bench`: a bounded load on a router; tokens per second and latency percentiles."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table

from specmesh.client import AsyncClient, Delta, Finished, Prompt, SpecMeshError

PROGRESS_SECONDS = 3.0
PERCENTILES = (50, 90, 99)

PROMPTS = (
    "The history of the lighthouse begins with",
    "def quicksort(items):\n    ",
    "Write a short letter to a friend about the sea.",
    "import json\n\n\ndef load_settings(path):\n    ",
)


@dataclass(slots=True)
class Measured:
    """What the requests of a run took, in seconds."""

    first_token: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    request: list[float] = field(default_factory=list)
    tokens: int = 0
    """Of the requests that ended well."""
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    first_failure: str = ""

    @property
    def num_ended(self) -> int:
        """Requests that are over, well or not."""
        return len(self.request) + sum(self.failures.values())


async def run_load(
    connect: Callable[[], AsyncClient],
    *,
    requests: int,
    concurrency: int,
    options: Mapping[str, Any],
    prompts: Sequence[Prompt] = PROMPTS,
    on_progress: Callable[[str], None],
    progress_seconds: float = PROGRESS_SECONDS,
) -> dict[str, Any]:
    """`requests` generations, at most `concurrency` at a time, prompts in turn. Returns the report.

    Every `progress_seconds` `on_progress` gets a line that says how far it is.
    """
    measured, numbers = Measured(), iter(range(requests))

    async def worker(client: AsyncClient) -> None:
        for number in numbers:
            await _one(client, prompts[number % len(prompts)], options, measured)

    async def progress() -> None:
        while True:
            await asyncio.sleep(progress_seconds)
            seconds = time.perf_counter() - began
            on_progress(f"{measured.num_ended} of {requests} requests, {measured.tokens} tokens, {seconds:.0f} s")

    began = time.perf_counter()
    telling = asyncio.create_task(progress())
    try:
        async with connect() as client, asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, requests)):
                group.create_task(worker(client))
    finally:
        telling.cancel()
    return make_report(measured, time.perf_counter() - began, requests, concurrency)


async def _one(client: AsyncClient, prompt: Prompt, options: Mapping[str, Any], measured: Measured) -> None:
    began = time.perf_counter()
    first = last = None
    tokens = 0
    try:
        async for event in client.stream(prompt, **options):
            if isinstance(event, Delta) and event.token_ids:
                last = time.perf_counter()
                first = first or last
                tokens += len(event.token_ids)
            elif isinstance(event, Finished):
                measured.drafted += event.usage.drafted_token_count
                measured.accepted += event.usage.accepted_token_count
                measured.steps += event.usage.step_count
    except SpecMeshError as error:
        name = error.reason or error.code.name
        measured.failures[name] = measured.failures.get(name, 0) + 1
        measured.first_failure = measured.first_failure or str(error)
        return
    measured.tokens += tokens
    measured.request.append(time.perf_counter() - began)
    if first is not None and last is not None:
        measured.first_token.append(first - began)
        if tokens > 1:
            measured.per_token.append((last - first) / (tokens - 1))


def make_report(measured: Measured, seconds: float, requests: int, concurrency: int) -> dict[str, Any]:
    """What the run comes to; percentiles in milliseconds."""
    return {
        "requests": requests,
        "concurrency": concurrency,
        "failures": measured.failures,
        "first_failure": measured.first_failure,
        "seconds": seconds,
        "output_tokens": measured.tokens,
        "tokens_per_second": measured.tokens / seconds,
        "steps": measured.steps,
        "tokens_per_step": measured.tokens / measured.steps if measured.steps else None,
        "acceptance": measured.accepted / measured.drafted if measured.drafted else None,
        "ms_to_first_token": _percentiles(measured.first_token),
        "ms_per_output_token": _percentiles(measured.per_token),
        "ms_per_request": _percentiles(measured.request),
    }


def _percentiles(seconds: list[float]) -> dict[str, float | None]:
    """Nearest rank, in milliseconds."""
    ordered = sorted(seconds)

    def at(percent: int) -> float | None:
        return ordered[math.ceil(percent / 100 * len(ordered)) - 1] * 1e3 if ordered else None

    return {f"p{percent}": at(percent) for percent in PERCENTILES}


def bench_table(report: Mapping[str, Any]) -> Table:
    """The report for people."""
    title = (
        f"{report['requests']} requests, {report['concurrency']} at a time: {report['tokens_per_second']:.1f} tokens/s"
    )
    table = Table("", *(f"p{percent}" for percent in PERCENTILES), title=title, title_justify="left")
    for name, key in (
        ("ms to first token", "ms_to_first_token"),
        ("ms per output token", "ms_per_output_token"),
        ("ms per request", "ms_per_request"),
    ):
        cells = (report[key][f"p{percent}"] for percent in PERCENTILES)
        table.add_row(name, *("-" if cell is None else f"{cell:.1f}" for cell in cells))
    if report["failures"]:
        failed = ", ".join(f"{count} {name}" for name, count in report["failures"].items())
        table.caption = escape(f"failed: {failed}; the first: {report['first_failure']}")
    return table

"""`specmesh generate`: one generation, its text as it comes, then what each arm did."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

from specmesh.client import AsyncClient, Delta, Finished, Generation, Options, Prompt, SpecMeshError
from specmesh.command.report import arm_table, generation_json, totals_by_arm
from specmesh.command.waterfall import waterfall
from specmesh.command.working import working


async def collect(client: AsyncClient, prompt: Prompt, on_text: Callable[[str], None], options: Options) -> Generation:
    """The whole generation; `on_text` gets its text piece by piece."""
    generation = Generation()
    async for event in client.stream(prompt, **options):
        generation.add(event)
        if isinstance(event, Delta) and event.text:
            on_text(event.text)
    return generation


FIRST_TOKEN = "waiting for the first token; the prompt is being read"


@contextmanager
def awaited_first_token(console: Console) -> Iterator[Callable[[], None]]:
    """For a person at a terminal: a long prompt, or a queue, takes its time before the first token. Leaves no trace."""
    if not console.is_terminal:
        yield lambda: None
        return
    with working(console, FIRST_TOKEN) as over:
        yield over


async def generate(
    connect: Callable[[], AsyncClient],
    prompt: Prompt,
    options: Options,
    *,
    as_json: bool,
    output: TextIO,
    console: Console,
    traceparent: str | None = None,
) -> None:
    """Text to `output`, the table to `console` (standard error); or one JSON object to `output`.

    With the `traceparent` that the request went with, the steps are drawn as well.
    """
    shown = False

    def show(text: str) -> None:
        nonlocal shown
        arrived()
        shown = True
        if not as_json:
            output.write(text)
            output.flush()

    async with connect() as client:
        with awaited_first_token(console) as arrived:
            try:
                generation = await collect(client, prompt, show, options)
            except SpecMeshError:
                if shown:
                    show("\n")  # what is said of the failure gets a line of its own
                raise
    if as_json:
        output.write(json.dumps(generation_json(generation), ensure_ascii=False, indent=2) + "\n")
        return
    if not generation.text:  # a target without a tokenizer
        output.write(",".join(map(str, generation.token_ids)))
    output.write("\n")
    output.flush()
    if generation.steps:
        console.print()
        if traceparent is not None:
            console.print(waterfall(generation.steps, traceparent))
        console.print(arm_table(totals_by_arm(generation.steps)))
    if generation.finished:
        console.print(summary(generation, generation.finished))


def summary(generation: Generation, finished: Finished) -> str:
    """One line: how much, how fast, why it ended."""
    usage = finished.usage
    seconds = sum(step.timing.total.seconds + step.timing.total.nanos / 1e9 for step in generation.steps)
    speed = f", {usage.output_token_count / seconds:.1f} tokens/s" if seconds else ""
    seed = f", seed {generation.started.seed}" if generation.started and generation.started.seed is not None else ""
    return (
        f"{usage.input_token_count} tokens in, {usage.output_token_count} out in {usage.step_count} steps{speed}; "
        f"ended by {finished.finish_reason}{seed}"
    )

"""`specmesh generate --trace`: the steps of one request and where the time of each went, drawn in the terminal."""

import secrets
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specmesh.command.report import PLAIN, milliseconds
from specmesh.v1 import router_service_pb2 as pb

BAR_WIDTH = 60
MAX_STEPS = 64
PREDICTED = "*"
"""After the arm of a block that was there before it was asked for."""
PARTS = {
    "draft": ("d", "green"),
    "network": ("n", "yellow"),
    "queue": ("q", "red"),
    "forward": ("f", "blue"),
    "verify": ("v", "magenta"),
    "router": ("r", "cyan"),
}
"""A letter and a colour each: the letter is enough where there are no colours."""


def new_traceparent() -> str:
    """A context of a new trace that is to be sampled, for meshes whose services send their spans to a collector."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def waterfall(steps: Sequence[pb.StepReport], traceparent: str) -> Table:
    """One line a step; all bars have one scale, that of the longest step. Parts are in the order in which they happen,
    but for `router` and `network`, which are all around.
    """
    shown, trace_id = steps[:MAX_STEPS], traceparent.split("-")[1]
    longest = max((milliseconds(step.timing.total) for step in shown), default=0.0)
    table = Table(
        title=f"Steps of trace {trace_id}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("at ms", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("arm", no_wrap=True)
    table.add_column("kept", justify="right", no_wrap=True)
    table.add_column(_legend(), no_wrap=True)
    at = 0.0
    for step in shown:
        total = milliseconds(step.timing.total)
        kept = f"{step.accepted_count}/{step.drafted_count}"
        arm = f"{step.arm} {PREDICTED}" if step.predicted else step.arm or PLAIN
        table.add_row(f"{at:.1f}", f"{total:.1f}", arm, kept, bar(step.timing, longest))
        at += total
    notes = [f"and {len(steps) - len(shown)} more steps"] if len(steps) > len(shown) else []
    if any(step.predicted for step in shown):
        notes.append(f"{PREDICTED} drafted before it was asked for, during an earlier step")
    table.caption = "\n".join(notes) or None
    return table


def bar(timing: pb.StepTiming, longest: float) -> Text:
    """The parts of a step; `BAR_WIDTH` characters are `longest` ms. A part ends where the sum so far does."""
    text, drawn, so_far = Text(), 0, 0.0
    for part, (letter, colour) in PARTS.items():
        so_far += milliseconds(getattr(timing, part))
        end = round(so_far / longest * BAR_WIDTH) if longest else 0
        text.append(letter * (end - drawn), style=f"{colour} reverse")
        drawn = end
    return text


def _legend() -> Text:
    text = Text()
    for part, (letter, colour) in PARTS.items():
        text.append(f"{letter} ", style=f"{colour} reverse")
        text.append(f"{part} ")
    return text

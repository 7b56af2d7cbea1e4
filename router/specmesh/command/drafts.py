"""`specmesh drafts` and `specmesh models`: what a router has."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from specmesh.client import AsyncClient, DeadlineExceeded, Overloaded, Unavailable
from specmesh.command.report import milliseconds
from specmesh.v1 import router_service_pb2 as pb

MAY_PASS = (Unavailable, Overloaded, DeadlineExceeded)
"""Failures that a later poll may not meet."""
STATE_STYLES = {"READY": "green", "COOLING": "yellow", "PROBING": "yellow", "DRAINING": "yellow"}


def state_of(arm: pb.DraftArm) -> str:
    """Without prefix."""
    return str(pb.ArmState.Name(arm.state)).removeprefix("ARM_STATE_")


def arms_json(arms: Sequence[pb.DraftArm]) -> list[dict[str, Any]]:
    """Every arm as an object."""
    return [
        {
            "arm": arm.name,
            "fingerprint": arm.fingerprint,
            "state": state_of(arm),
            "reason": arm.reason,
            "ready_replicas": arm.ready_replica_count,
            "acceptance": arm.acceptance,
            "block_latency_ms": milliseconds(arm.block_latency),
            "step_share": arm.step_share,
        }
        for arm in arms
    ]


def arms_table(arms: Sequence[pb.DraftArm]) -> Table:
    """One line an arm; why one is out is told in the last column."""
    table = Table()
    for name in ("arm", "state"):
        table.add_column(name)
    for name in ("replicas", "acceptance", "ms to a block", "share of steps"):
        table.add_column(name, justify="right")
    table.add_column("why")
    for arm in arms:
        state = state_of(arm)
        table.add_row(
            arm.name, f"[{STATE_STYLES.get(state, 'red')}]{state}[/]", str(arm.ready_replica_count),
            f"{arm.acceptance:.0%}", f"{milliseconds(arm.block_latency):.1f}", f"{arm.step_share:.0%}", arm.reason,
        )  # fmt: skip
    if not arms:
        table.caption = "no drafts: every step is plain decoding"
    return table


async def show_drafts(
    connect: Callable[[], AsyncClient], console: Console, *, model: str, as_json: bool, interval: float | None
) -> None:
    """Once, or again and again until Ctrl-C when an interval is given."""
    async with connect() as client:
        arms = await client.list_drafts(model)
        if as_json:
            console.file.write(json.dumps(arms_json(arms), indent=2) + "\n")
        elif interval is None:
            console.print(arms_table(arms))
        else:
            await _watch(client, console, model, interval, arms)


async def _watch(
    client: AsyncClient, console: Console, model: str, interval: float, arms: Sequence[pb.DraftArm]
) -> None:
    """One table that changes at a terminal, a table a poll elsewhere. A poll that fails is a line, and not the end."""
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            if live is None:
                console.print(arms_table(arms))
            else:
                live.update(arms_table(arms), refresh=True)
            arms = await _next_arms(client, console, model, interval)


async def _next_arms(client: AsyncClient, console: Console, model: str, interval: float) -> Sequence[pb.DraftArm]:
    """The arms at the next poll that is answered."""
    while True:
        await asyncio.sleep(interval)
        try:
            return await client.list_drafts(model)
        except MAY_PASS as error:
            told = f"{datetime.now():%H:%M:%S}: no answer, asking again: {error}"
            console.print(escape(told), style="yellow", highlight=False, soft_wrap=True)


async def show_models(connect: Callable[[], AsyncClient], console: Console, *, as_json: bool) -> None:
    """The targets that are served."""
    async with connect() as client:
        models = await client.list_models()
    if as_json:
        console.file.write(json.dumps([model_json(model) for model in models], indent=2) + "\n")
        return
    table = Table("model", "context", "vocabulary", "fingerprint")
    for model in models:
        table.add_row(model.name, str(model.max_context_tokens), str(model.vocabulary_size), model.fingerprint[:16])
    console.print(table)


def model_json(model: pb.Model) -> dict[str, Any]:
    """A target as an object."""
    return {
        "name": model.name,
        "fingerprint": model.fingerprint,
        "max_context_tokens": model.max_context_tokens,
        "vocabulary_size": model.vocabulary_size,
        "features": list(model.features),
    }

"""What the command shows of a mesh that runs: the waterfall of one request, and the arms as they are."""

import asyncio
import os
import re
import signal
import sys

import pytest
from telemetry_parts import Watched, needs_rotel, wait_until

from specmesh.runtime.telemetry import names
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

pytestmark = [needs_rotel, pytest.mark.slow]


async def test_a_request_is_drawn_step_by_step_and_is_the_trace_that_the_collector_has(
    watched: Watched, stub: RouterServiceStub
) -> None:
    process = await specmesh(watched, "generate", "--trace", "--tokens", "0,1,2", "--max-tokens", "20")
    _, drawing = (text.decode() for text in await process.communicate())
    assert process.returncode == 0, drawing
    [trace_id] = re.findall(r"trace ([0-9a-f]{32})", drawing)
    drawn = re.findall(r"^ *[\d.]+ +[\d.]+ +\S.* \d/\d ", drawing, re.MULTILINE)
    assert any("near@" in line for line in drawn), drawing
    sink = watched.collector.sink

    def seen() -> list[str]:
        return [span.name for span in sink.traces().get(trace_id, ())]

    wait_until(lambda: "specmesh.v1.RouterService/Generate" in seen(), "the call of the trace that was drawn")
    wait_until(lambda: seen().count(names.STEP_SPAN) == len(drawn), "a span for each step that was drawn")


async def test_the_arms_are_shown_until_it_is_told_to_end(watched: Watched, stub: RouterServiceStub) -> None:
    """Into a pipe a table each time; Ctrl-C is how it is meant to end."""
    process = await specmesh(watched, "drafts", "--watch", "--interval", "0.1")
    assert process.stdout is not None
    rows: list[str] = []
    while len(rows) < 3:
        line = (await process.stdout.readline()).decode()
        assert line, (await process.communicate())[1]
        rows += [line] if "near@" in line else []
    assert all("READY" in row for row in rows)
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors


async def specmesh(watched: Watched, *arguments: str) -> asyncio.subprocess.Process:
    """The command, as in a wide terminal that is a pipe.

    Ctrl-C reaches it also where these tests are a shell's background job, which ignores it and whose children do.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "specmesh.cli", *arguments, "--address", watched.router.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"COLUMNS": "160"},
        )
    finally:
        signal.signal(signal.SIGINT, before)

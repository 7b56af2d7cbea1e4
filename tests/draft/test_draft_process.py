"""A draft service as its own process: ready line, health, drain, bad settings."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from draft_peers import Answer, Conversation, ask_for, random_law
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specmesh.draft.ngram_file import NgramTable, law_to_levels, save_table
from specmesh.runtime.contract import DRAFT_SERVICE
from specmesh.runtime.streams import channel
from specmesh.runtime.wire import draft_ask_to_entry
from specmesh.v1 import draft_service_pb2 as pb
from specmesh.v1 import draft_service_pb2_grpc as pb_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def law_path(tmp_path: Path) -> Path:
    path = tmp_path / "law.npz"
    save_table(path, NgramTable(law_to_levels(random_law(5, 1)), 5))
    return path


async def start(*settings: str) -> asyncio.subprocess.Process:
    arguments = [word for setting in settings for word in ("--set", setting)]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "specmesh.draft",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@asynccontextmanager
async def draft_process(*settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, grpc.aio.Channel]]:
    process = await start(*settings)
    try:
        assert process.stdout is not None
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        assert ready["event"] == "ready"
        async with channel(ready["address"]) as to_process:
            yield process, to_process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def health(to_process: grpc.aio.Channel) -> int:
    stub = health_pb2_grpc.HealthStub(to_process)
    response = await stub.Check(health_pb2.HealthCheckRequest(service=DRAFT_SERVICE), timeout=2)
    return response.status


async def answering(to_process: grpc.aio.Channel, num_tokens: int) -> tuple[Conversation, Answer]:
    """A block of 16 tokens was asked for, of which so many have come."""
    talk = Conversation(pb_grpc.DraftServiceStub(to_process))
    await talk.send([draft_ask_to_entry(ask_for([1, 2], 2, 16))])
    answer = talk.expect(1, 2)
    while len(answer.token_ids) < num_tokens:
        await talk.read()
    return talk, answer


async def test_health_answers_while_a_draft_works_hard(law_path: Path) -> None:
    """C31, draft side: a forward of seconds leaves the event loop alone."""
    settings = f'drafter={{ kind = "table", settings = {{ path = "{law_path}" }}, token_seconds = 3.0 }}'
    async with draft_process("kind=faulty", settings) as (_, to_process):
        talk = Conversation(pb_grpc.DraftServiceStub(to_process))
        await talk.send([draft_ask_to_entry(ask_for([1, 2], 2, 1))])
        answer = talk.expect(1, 2)
        loop = asyncio.get_running_loop()
        for _ in range(5):
            before = loop.time()
            assert await health(to_process) == SERVING
            assert loop.time() - before < 0.2
        assert not answer.done
        while not answer.done:
            await talk.read()
        assert answer.reason == "LENGTH"


async def test_sigterm_finishes_the_block_and_exits_0(law_path: Path) -> None:
    """C32, draft side."""
    settings = f'drafter={{ kind = "table", settings = {{ path = "{law_path}" }}, token_seconds = 0.05 }}'
    async with draft_process("kind=faulty", settings) as (process, to_process):
        talk, answer = await answering(to_process, 3)
        process.send_signal(signal.SIGTERM)
        while not answer.done:
            await talk.read()
        assert (answer.reason, len(answer.token_ids), answer.draining) == ("LENGTH", 16, True)
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_process_told_to_die_says_what_it_had_and_is_gone(law_path: Path) -> None:
    """C23, draft side: the fault that the mesh's tests inject."""
    settings = f'drafter={{ kind = "table", settings = {{ path = "{law_path}" }}, exit_after_tokens = 5 }}'
    async with draft_process("kind=faulty", settings) as (process, to_process):
        talk, _ = await answering(to_process, 5)
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await talk.call.read()
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await process.wait() == 1


async def test_health_answers_from_the_first_moment_of_a_slow_load() -> None:
    """C31, draft side: NOT_SERVING, and everything else UNAVAILABLE, until the draft is there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await start("kind=faulty", f"server.port={port}", 'drafter={ kind = "lookup", load_seconds = 2.0 }')
    assert process.stdout is not None
    ready = asyncio.ensure_future(process.stdout.readline())
    try:
        async with channel(f"127.0.0.1:{port}") as to_process:
            await asyncio.wait_for(to_process.channel_ready(), 30)
            assert await health(to_process) == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await pb_grpc.DraftServiceStub(to_process).GetInfo(pb.DraftServiceGetInfoRequest())
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert not ready.done()
            assert json.loads(await asyncio.wait_for(ready, 30))["event"] == "ready"
            assert await health(to_process) == SERVING
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["kind=eagle"], "kind: unknown kind of draft, must be one of hf, lookup, table"),
        (["drafter.min_match=0"], "drafter.min_match: Input should be greater than or equal to 1"),
    ],
)
async def test_a_bad_setting_stops_the_process_with_its_name(settings: list[str], message: str) -> None:
    process = await start(*settings)
    stdout, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert stdout == b""
    assert stderr.decode().startswith(f"specmesh draft: {message}")
    assert stderr.count(b"\n") == 1

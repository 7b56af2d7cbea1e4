"""Clients that start a stream and do not read it: what they hold is free after a while, and they learn why."""

import asyncio
import time

import grpc
import grpc.aio
import pytest
from serving_fakes import Script, scripted_server

from specmesh.runtime.calls import STATUS_SECONDS
from specmesh.runtime.config import ServerConfig
from specmesh.runtime.errors import NotRead
from specmesh.runtime.reading import WatchedWriter
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.telemetry.instruments import Registry
from specmesh.runtime.telemetry.names import RPC_STATUS
from specmesh.runtime.telemetry.setup import Telemetry
from specmesh.runtime.telemetry.spans import Span, Tracer
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

NUM_MESSAGES = 400
TEXT = "x" * 1000
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0)]
"""Of 64 KiB, for ever: it does not grow with the speed of the connection."""


def generate(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamCall:
    return RouterServiceStub(channel).Generate(pb.GenerateRequest(stop={"max_output_tokens": NUM_MESSAGES}))


async def rest_of(call: grpc.aio.UnaryStreamCall) -> int:
    """How many messages still come. Raises the call's error."""
    count = 0
    while await call.read() is not grpc.aio.EOF:
        count += 1
    return count


@pytest.mark.parametrize("later", [0.0, STATUS_SECONDS + 0.5], ids=["soon", "later"])
async def test_a_stream_of_which_nothing_is_taken_ends_and_says_what_to_do(
    later: float, caplog: pytest.LogCaptureFixture
) -> None:
    """What the client held is free at that moment; what it had been sent it can still read, and then the reason."""
    script = Script(text=TEXT)
    config = ServerConfig(max_unread_seconds=0.5, max_concurrent_calls=1)
    spans: list[Span] = []
    telemetry = Telemetry(Registry(), Tracer(spans.append, 1.0))
    async with (
        scripted_server(script, config, telemetry) as server,
        grpc.aio.insecure_channel(server.address, SMALL_WINDOW) as channel,
    ):
        unread = generate(channel)
        await script.started.wait()
        async with asyncio.timeout(10):
            await script.ended.wait()
            assert await rest_of(generate(channel)) == NUM_MESSAGES
            await asyncio.sleep(later)
            try:
                raise AssertionError(f"{await rest_of(unread)} messages and no error")
            except grpc.aio.AioRpcError as failure:
                error = from_rpc_error(failure)
    assert isinstance(error, NotRead)
    assert error.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "server.max_unread_seconds" in error.message
    assert "continuation_token_ids" in error.message
    assert {"OK", "RESOURCE_EXHAUSTED"} == {span.attributes[RPC_STATUS] for span in spans}
    assert caplog.records == []


async def test_a_reader_that_pauses_for_less_gets_everything() -> None:
    script = Script(text=TEXT)
    config = ServerConfig(max_unread_seconds=2.0)
    async with (
        scripted_server(script, config) as server,
        grpc.aio.insecure_channel(server.address, SMALL_WINDOW) as channel,
    ):
        call, count = generate(channel), 0
        for pause in (0.8, 0.8, 0.8):
            await asyncio.sleep(pause)
            for _ in range(100):
                await call.read()
                count += 1
        assert count + await rest_of(call) == NUM_MESSAGES


async def test_a_stream_that_has_nothing_to_say_may_be_silent_for_longer() -> None:
    """The time counts only while there is something to read."""
    script = Script(on_message=lambda: asyncio.sleep(2.5))
    config = ServerConfig(max_unread_seconds=1.0)
    async with scripted_server(script, config) as server, grpc.aio.insecure_channel(server.address) as channel:
        request = pb.GenerateRequest(stop={"max_output_tokens": 2})
        assert await rest_of(RouterServiceStub(channel).Generate(request)) == 2


class Pipe:
    """Takes a message when a test says so."""

    def __init__(self) -> None:
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def write(self, message: object) -> None:
        await self.taken


async def test_a_message_that_was_taken_while_the_loop_stood_still_was_read() -> None:
    """That it was taken, and that time is up, are learned in the same turn of the loop."""
    loop, pipe = asyncio.get_running_loop(), Pipe()
    with WatchedWriter(pipe, 0.1) as writer:  # type: ignore[arg-type]
        loop.call_later(0.05, pipe.taken.set_result, None)
        loop.call_soon(time.sleep, 0.3)
        await writer.write("x")


async def test_whatever_task_writes_is_the_one_that_learns_of_it_and_goes_on_as_it_was() -> None:
    with WatchedWriter(Pipe(), 0.1, ": do this") as writer:  # type: ignore[arg-type]
        writing = asyncio.ensure_future(writer.write("x"))
        await asyncio.wait({writing})
    error = writing.exception()
    assert isinstance(error, NotRead)
    assert error.message.endswith("read it as it comes: do this")
    assert not writing.cancelled()
    assert not writing.cancelling()


async def test_a_write_whose_task_is_cancelled_by_another_is_cancelled() -> None:
    with WatchedWriter(Pipe(), 60) as writer:  # type: ignore[arg-type]
        writing = asyncio.ensure_future(writer.write("x"))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
    assert writing.cancelled()

"""Requests and answers too large for a message: who refuses them, with which words, and that none is tried in vain."""

import asyncio

import grpc
import grpc.aio
import pytest
from scripted_router import Failure, scripted_router, token_at
from scripted_router import Script as RouterScript
from serving_fakes import Script, scripted_server

from specmesh._client_run import Run
from specmesh.client import AsyncClient, Client, Delta, InvalidRequest, Partial, Started
from specmesh.runtime.config import ServerConfig
from specmesh.v1 import router_service_pb2 as pb

LIMIT = 64 * 1024
EXHAUSTED, UNAVAILABLE = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE
LONGER = " are sent: shorten the prompt, or give the client max_request_bytes where the router takes more "


def failed(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def running(max_bytes: int) -> Run:
    """One that has got its first event and 100 tokens."""
    run = Run(pb.GenerateRequest(text="x"), 60, 3, max_bytes)
    run.feed(pb.GenerateResponse(started=pb.GenerationStarted(request_id="r", model="m", seed=1)))
    run.feed(pb.GenerateResponse(delta=pb.OutputDelta(token_ids=range(100))))
    return run


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (100_000, "request: 100008 bytes; server.max_message_bytes is 65536 here: send less at a time"),
        (200_000, "request: 200008 bytes, and the router takes less (server.max_message_bytes): shorten the prompt"),
    ],
)
async def test_a_request_above_the_limit_of_a_router_is_refused_and_no_wrong_limit_is_named(
    size: int, words: str
) -> None:
    config = ServerConfig(max_message_bytes=LIMIT)
    async with scripted_server(Script(), config) as server, AsyncClient(server.address) as client:
        with pytest.raises(InvalidRequest) as refused:
            await client.generate("x" * size, max_output_tokens=1)
        with Client(server.address) as blocking, pytest.raises(InvalidRequest) as refused_too:
            await asyncio.to_thread(blocking.generate, "x" * size, max_output_tokens=1)
    assert refused.value.message == refused_too.value.message == words
    assert refused.value.field == refused_too.value.field == "request"


def test_what_the_channel_itself_does_not_send_is_said_as_the_clients_own_bound() -> None:
    with pytest.raises(InvalidRequest) as refused:
        running(LIMIT).resume_after(failed(EXHAUSTED, "CLIENT: Sent message larger than max (70000 vs. 65536)"))
    assert refused.value.message.startswith(f"request: 70000 bytes, and at most 65536{LONGER}")


def test_a_stream_that_brings_too_much_is_not_taken_up_again() -> None:
    """It would bring as much the next time."""
    run = running(LIMIT)
    with pytest.raises(InvalidRequest, match=r"output: a message of 70000000 bytes") as refused:
        run.resume_after(failed(EXHAUSTED, "CLIENT: Received message larger than max (70000000 vs. 67108864)"))
    assert refused.value.partial is not None
    assert len(refused.value.partial.token_ids) == 100


def test_a_resume_that_is_too_large_is_refused_with_what_had_come() -> None:
    """A request grows by the output so far."""
    run = running(100)
    with pytest.raises(InvalidRequest, match=r"request: 1[0-9]{2} bytes, and at most 100 are sent") as refused:
        run.resume_after(failed(UNAVAILABLE))
    assert refused.value.partial is not None
    assert len(refused.value.partial.token_ids) == 100
    assert running(LIMIT).resume_after(failed(UNAVAILABLE)) > 0


def test_a_resume_by_hand_is_bounded_as_well() -> None:
    partial = Partial(pb.GenerateRequest(text="x"), Started("r", "m", "f", 1, "COUPLED"), tuple(range(100)), "")
    with Client("localhost:1", max_request_bytes=100) as client, pytest.raises(InvalidRequest) as refused:
        client.resume(partial)
    assert refused.value.field == "request"


async def test_a_resume_below_the_bound_goes_on() -> None:
    script = RouterScript(failures=[Failure(UNAVAILABLE, after=3)])
    with scripted_router(script) as address:
        async with AsyncClient(address, max_request_bytes=100) as client:
            events = [event async for event in client.stream("x", max_output_tokens=5, seed=1)]
    token_ids = [token for event in events if isinstance(event, Delta) for token in event.token_ids]
    assert token_ids == [token_at(1, index) for index in range(5)]

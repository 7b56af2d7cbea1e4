"""Both clients against a real server: events, retries before the first token, resumes after it, errors, deadlines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
import trustme
from scripted_router import DRAWN_SEED, Failure, Script, scripted_router, text_of, token_at

from specmesh.client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    Delta,
    Finished,
    Generation,
    InvalidRequest,
    NotAllowed,
    Overloaded,
    Partial,
    SpecMeshError,
    Started,
    Tls,
    Unavailable,
)

UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


class Blocking:
    """`Client` with the interface of `AsyncClient`, so that one test drives both."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def generate(self, *arguments: Any, **options: Any) -> Generation:
        return self._client.generate(*arguments, **options)

    async def resume(self, partial: Partial) -> AsyncIterator[Any]:
        for event in self._client.resume(partial):
            yield event

    async def stream(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        for event in self._client.stream(*arguments, **options):
            yield event

    async def list_models(self) -> list[Any]:
        return self._client.list_models()

    async def list_drafts(self) -> list[Any]:
        return self._client.list_drafts()

    async def close(self) -> None:
        self._client.close()


Connect = Callable[..., Any]


@pytest.fixture(params=["sync", "asyncio"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Makes clients of either kind and closes them."""
    opened: list[Any] = []

    def make(address: str, **options: Any) -> Any:
        client = Blocking(Client(address, **options)) if request.param == "sync" else AsyncClient(address, **options)
        opened.append(client)
        return client

    yield make
    for client in opened:
        await client.close()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def address(script: Script) -> Iterator[str]:
    with scripted_router(script) as address:
        yield address


async def failure_of(call: Awaitable[Any]) -> SpecMeshError:
    with pytest.raises(SpecMeshError) as failure:
        await call
    return failure.value


async def test_a_generation_comes_as_started_deltas_finished(connect: Connect, address: str) -> None:
    client = connect(address)
    events = [event async for event in client.stream("hello", max_output_tokens=3, seed=5, logprobs=0)]
    assert events[0] == Started("drawn", "tiny", "f", 5, "COUPLED")
    assert [event.token_ids for event in events[1:-1]] == [(token_at(5, index),) for index in range(3)]
    assert all(isinstance(event, Delta) and len(event.logprobs) == 1 for event in events[1:-1])
    assert isinstance(events[-1], Finished)
    assert (events[-1].finish_reason, events[-1].usage.output_token_count) == ("LENGTH", 3)


async def test_generate_gives_the_whole_text_and_its_end(connect: Connect, address: str) -> None:
    generation = await connect(address).generate([1, 2], max_output_tokens=4)
    assert generation.text == text_of(DRAWN_SEED, 4)
    assert generation.token_ids == [token_at(DRAWN_SEED, index) for index in range(4)]
    assert generation.started is not None
    assert generation.finished is not None
    assert generation.finished.finish_reason == "LENGTH"


async def test_unavailable_before_the_first_token_is_repeated_unseen(
    connect: Connect, address: str, script: Script
) -> None:
    """C41: gRPC's own retry covers it; the caller sees one generation."""
    script.failures = [Failure(UNAVAILABLE), Failure(UNAVAILABLE)]
    assert (await connect(address).generate("x", max_output_tokens=2)).text == text_of(DRAWN_SEED, 2)
    assert len(script.requests) == 3
    assert script.requests[0] == script.requests[2]


async def test_pushback_of_a_full_server_is_obeyed(connect: Connect, address: str, script: Script) -> None:
    """C41: RESOURCE_EXHAUSTED is tried again when the trailer says, not sooner."""
    script.failures = [Failure(EXHAUSTED, reason="OVERLOADED", pushback_ms=700)]
    assert (await connect(address).generate("x", max_output_tokens=1)).finished is not None
    assert script.times[1] - script.times[0] >= 0.69


async def test_a_request_larger_than_grpcs_retry_buffer_is_repeated_too(
    connect: Connect, address: str, script: Script
) -> None:
    script.failures = [Failure(UNAVAILABLE)]
    assert (await connect(address).generate("x" * 2_000_000, max_output_tokens=1)).finished is not None
    assert len(script.requests) == 2


async def test_the_largest_request_can_be_set(connect: Connect, script: Script) -> None:
    with scripted_router(script) as address:
        prompt = "x" * (5 << 20)
        with pytest.raises(InvalidRequest) as refused:
            await connect(address).generate(prompt, max_output_tokens=1)
        assert refused.value.message == (
            "request: 5242889 bytes, and at most 4194304 are sent: shorten the prompt, or give the client "
            "max_request_bytes where the router takes more (server.max_message_bytes)"
        )
        large = connect(address, max_request_bytes=6 << 20)
        assert (await large.generate(prompt, max_output_tokens=1)).finished is not None


async def test_a_stream_that_breaks_is_resumed_with_the_same_text(
    connect: Connect, address: str, script: Script
) -> None:
    """C41: after the first token the client goes on with what it has, under the seed that the server drew."""
    script.failures = [Failure(UNAVAILABLE, after=2), Failure(UNAVAILABLE), Failure(UNAVAILABLE, after=5)]
    events = [event async for event in connect(address).stream("x", max_output_tokens=8, stop=["zzz"])]
    assert "".join(event.text for event in events if isinstance(event, Delta)) == text_of(DRAWN_SEED, 8)
    assert [event.output_offset for event in events if isinstance(event, Delta)] == list(range(8))
    assert sum(isinstance(event, Started) for event in events) == 1
    last = script.requests[-1]
    assert list(last.continuation_token_ids) == [token_at(DRAWN_SEED, index) for index in range(5)]
    assert last.sampling.seed == DRAWN_SEED
    assert list(last.stop.strings) == ["zzz"]


async def test_under_block_a_resume_names_no_seed(connect: Connect, address: str, script: Script) -> None:
    script.failures = [Failure(UNAVAILABLE, after=1)]
    assert (await connect(address).generate("x", max_output_tokens=3, rule="BLOCK")).finished is not None
    assert not script.requests[1].sampling.HasField("seed")


async def test_resumes_are_bounded_and_the_error_brings_what_there_was(
    connect: Connect, address: str, script: Script
) -> None:
    script.failures = [Failure(UNAVAILABLE, after=count, reason="DRAINING") for count in (1, 2)]
    client = connect(address, resumes=1)
    error = await failure_of(client.generate("x", max_output_tokens=4))
    assert isinstance(error, Unavailable)
    assert error.reason == "DRAINING"
    assert error.partial is not None
    assert error.partial.text == text_of(DRAWN_SEED, 2)
    rest = [event async for event in client.resume(error.partial) if isinstance(event, Delta)]
    assert error.partial.text + "".join(event.text for event in rest) == text_of(DRAWN_SEED, 4)


async def test_a_failure_that_no_retry_can_help_is_not_resumed(connect: Connect, address: str, script: Script) -> None:
    script.failures = [Failure(grpc.StatusCode.INTERNAL, after=1, reason="NON_FINITE_LOGITS")]
    error = await failure_of(connect(address).generate("x", max_output_tokens=4))
    assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "NON_FINITE_LOGITS")
    assert len(script.requests) == 1


async def test_another_model_does_not_go_on_with_the_text_of_the_first(
    connect: Connect, address: str, script: Script
) -> None:
    script.failures = [Failure(UNAVAILABLE, after=1)]
    script.fingerprints = ["one", "two"]
    error = await failure_of(connect(address).generate("x", max_output_tokens=4))
    assert error.code == grpc.StatusCode.ABORTED
    assert error.partial is not None


async def test_a_stream_without_its_last_event_is_an_error(connect: Connect, address: str, script: Script) -> None:
    script.end_early = True
    assert (await failure_of(connect(address).generate("x", max_output_tokens=1))).code == grpc.StatusCode.DATA_LOSS


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure(grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_VALUE", field="sampling.top_p"), InvalidRequest),
        (Failure(grpc.StatusCode.PERMISSION_DENIED, reason="NOT_ALLOWED"), NotAllowed),
        (Failure(grpc.StatusCode.NOT_FOUND, reason="UNKNOWN_MODEL"), SpecMeshError),
        (Failure(grpc.StatusCode.DEADLINE_EXCEEDED), DeadlineExceeded),
        (Failure(EXHAUSTED, reason="QUOTA", retry_seconds=0.25, pushback_ms=-1), Overloaded),
    ],
)
async def test_errors_say_reason_field_and_delay(
    connect: Connect, address: str, script: Script, failure: Failure, kind: type[SpecMeshError]
) -> None:
    script.failures = [failure]
    client = connect(address)
    error = await failure_of(client.generate("x", max_output_tokens=1))
    assert type(error) is kind
    assert (error.code, error.reason, error.field) == (failure.code, failure.reason, failure.field)
    assert error.retry_after == failure.retry_seconds
    assert error.partial is None
    assert (await client.generate("x", max_output_tokens=1)).finished is not None


async def test_details_that_cannot_be_read_leave_the_status(connect: Connect, address: str, script: Script) -> None:
    script.failures = [Failure(grpc.StatusCode.INTERNAL, details=b"\xff\xff")]
    error = await failure_of(connect(address).generate("x", max_output_tokens=1))
    assert (error.code, error.reason, error.message) == (grpc.StatusCode.INTERNAL, "", "scripted")


async def test_every_call_has_a_deadline_and_a_resume_does_not_renew_it(
    connect: Connect, address: str, script: Script
) -> None:
    script.failures = [Failure(UNAVAILABLE, after=1, retry_seconds=0.5)]
    client = connect(address, timeout=5.0)
    await client.generate("x", max_output_tokens=2)
    await client.generate("x", max_output_tokens=2, timeout=3.0)
    first, resumed, short = script.remaining
    # Short deadlines travel rounded to about a hundredth, long ones to a second.
    assert 4 < first < 5.1
    assert resumed < first - 0.3
    assert 2 < short < 3.1


async def test_a_wait_beyond_the_deadline_is_not_waited(connect: Connect, address: str, script: Script) -> None:
    script.failures = [Failure(EXHAUSTED, after=1, retry_seconds=0.9)]
    error = await failure_of(connect(address).generate("x", max_output_tokens=2, timeout=0.8))
    assert isinstance(error, Overloaded)


async def test_a_dead_address_is_unavailable(connect: Connect) -> None:
    with scripted_router(Script()) as address:
        pass
    assert isinstance(await failure_of(connect(address).generate("x", max_output_tokens=1)), Unavailable)


async def test_models_and_drafts_are_listed(connect: Connect, address: str, script: Script) -> None:
    client = connect(address)
    assert [model.name for model in await client.list_models()] == ["tiny"]
    assert [arm.name for arm in await client.list_drafts()] == ["code@01234567"]
    script.failures = [Failure(grpc.StatusCode.UNAUTHENTICATED, reason="NOT_ALLOWED")]
    assert isinstance(await failure_of(client.list_models()), NotAllowed)


async def test_a_token_is_sent_with_every_call_and_may_change(connect: Connect, address: str, script: Script) -> None:
    tokens = iter(["one", "two"])
    client = connect(address, token=lambda: next(tokens), plaintext_token=True)
    await client.list_models()
    await client.generate("x", max_output_tokens=1)
    assert [call["authorization"] for call in script.metadata] == ["Bearer one", "Bearer two"]


async def test_a_token_is_not_sent_in_the_clear_unless_told(connect: Connect) -> None:
    with pytest.raises(ValueError, match="needs tls"):
        connect("localhost:1", token="secret")


async def test_leaving_a_stream_cancels_it(address: str, script: Script) -> None:
    script.hang_after = 2
    with Client(address) as client:
        events = client.stream("x", max_output_tokens=5)
        assert isinstance(next(events), Started)
        events.close()
        assert await asyncio.to_thread(script.over.wait, 5)
    script.over.clear()
    async with AsyncClient(address) as client:
        stream = client.stream("x", max_output_tokens=5)
        assert isinstance(await anext(stream), Started)
        await stream.aclose()
        assert await asyncio.to_thread(script.over.wait, 5)


async def test_a_cancelled_task_cancels_its_call(address: str, script: Script) -> None:
    script.hang_after = 0
    async with AsyncClient(address) as client:
        task = asyncio.create_task(client.generate("x", max_output_tokens=5))
        assert await asyncio.to_thread(script.hanging.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(script.over.wait, 5)


async def test_tls_with_a_client_certificate_and_a_token(connect: Connect, script: Script) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client@mesh")
    roots = authority.cert_pem.bytes()
    pair = (server.private_key_pem.bytes(), server.cert_chain_pems[0].bytes())
    credentials = grpc.ssl_server_credentials([pair], roots, require_client_auth=True)
    certificate = Tls(roots, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())
    with scripted_router(script, credentials) as address:
        assert (await connect(address, tls=certificate, token="secret").list_models())[0].name == "tiny"
        assert isinstance(await failure_of(connect(address, tls=Tls(roots)).list_models()), Unavailable)
        assert isinstance(await failure_of(connect(address).list_models()), Unavailable)
    assert script.metadata[0]["authorization"] == "Bearer secret"
    assert len(script.metadata) == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_timeout_that_is_none_is_refused(connect: Connect, seconds: float) -> None:
    client = connect("localhost:1")
    assert (await failure_of(client.generate("x", max_output_tokens=1, timeout=seconds))).field == "timeout"
    with pytest.raises(InvalidRequest):
        connect("localhost:1", timeout=seconds)

"""What a client gets of the steps: whole, in order, once, and never more than it can hold."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest
from router_parts import make_session
from tiny_tokenizers import of_pieces, to_bytes

from specmesh.router.config import RouterConfig
from specmesh.router.output import Output
from specmesh.router.service import hand_failure
from specmesh.router.session import Session
from specmesh.router.text import Tokenizer
from specmesh.runtime.config import ConfigError, load_config
from specmesh.runtime.errors import InvalidValue, MeshError, NoVerifier
from specmesh.runtime.streams import DEFAULT_MAX_MESSAGE_BYTES
from specmesh.runtime.types import FinishReason, StepResult, TokenLogprob
from specmesh.v1 import router_service_pb2 as pb

STARTED = pb.GenerationStarted(request_id="r", seed=3)
PIECES = ["<unk>", "al", "pha ", "be", "ta", " ga", "The quick brown", " fox", "mma", "!"]


def make_output(
    pieces: list[str] | None = None,
    max_unread_bytes: int = 1 << 20,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    **plan: Any,
) -> tuple[Session, Output]:
    session = make_session(max_output_tokens=60, **plan)
    text = None
    if pieces is not None:
        text = Tokenizer(to_bytes(of_pieces(pieces))).stream(session.plan.stop_strings)
    return session, Output(session, text, STARTED, max_unread_bytes, max_message_bytes)


def emit(session: Session, output: Output, *token_ids: int, **fields: Any) -> StepResult:
    """A step as the step loop takes it."""
    accepted = max(len(token_ids) - 1, 0)
    result = output.cut_at_stop(StepResult(77, session.position, token_ids, accepted, accepted, **fields))
    session.commit(result)
    output.add(result, None)
    return result


async def emit_where_there_is_room(session: Session, output: Output, count: int) -> None:
    for token in range(count):
        logprobs = (TokenLogprob(-1.0, ((300, -0.5), (70_000, -0.5))),)
        emit(session, output, token % 10, logprobs=logprobs)
        await output.room()


async def collect(output: Output) -> list[pb.GenerateResponse]:
    return [event async for event in output.events()]


def text_of(events: list[pb.GenerateResponse]) -> str:
    return "".join(event.delta.text for event in events)


def kinds(events: list[pb.GenerateResponse]) -> list[str]:
    return [str(event.WhichOneof("event")) for event in events]


async def test_started_comes_with_the_first_token_and_not_before() -> None:
    session, output = make_output()
    events = output.events()
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.02)
    assert not first.done()
    emit(session, output, 9)
    assert (await first).started == STARTED
    assert (await anext(events)).delta.token_ids == [9]
    emit(session, output, 10, 11)
    second = (await anext(events)).delta
    assert (second.token_ids, second.output_offset) == ([10, 11], 1)
    output.finish(FinishReason.LENGTH)
    finished = (await anext(events)).finished
    assert finished.finish_reason == pb.FINISH_REASON_LENGTH
    assert finished.usage.output_token_count == 3


async def test_a_failure_before_the_first_token_sends_nothing() -> None:
    _, output = make_output()
    output.fail(NoVerifier("none"))
    with pytest.raises(NoVerifier):
        await anext(output.events())


async def test_tokens_emitted_before_a_failure_still_arrive() -> None:
    session, output = make_output()
    emit(session, output, 9)
    output.fail(NoVerifier("none"))
    events = output.events()
    assert kinds([await anext(events), await anext(events)]) == ["started", "delta"]
    with pytest.raises(NoVerifier):
        await anext(events)


async def test_unary_sends_everything_at_the_end() -> None:
    session, output = make_output(unary=True, max_unread_bytes=1024, logprobs=5)
    for _ in range(20):
        emit(session, output, 9, 10, logprobs=(TokenLogprob(-1.0, ((1, -0.5),) * 5),) * 2)
        await output.room()
    output.finish(FinishReason.LENGTH)
    events = await collect(output)
    assert kinds(events) == ["started", "delta", "finished"]
    assert len(events[1].delta.token_ids) == len(events[1].delta.logprobs) == 40


async def test_unary_sends_nothing_of_a_failed_generation() -> None:
    session, output = make_output(unary=True)
    emit(session, output, 9)
    output.fail(NoVerifier("none"))
    with pytest.raises(NoVerifier):
        await anext(output.events())


async def test_steps_are_gathered_for_the_chunk_interval() -> None:
    session, output = make_output(min_chunk_interval=0.15)
    deltas: list[tuple[float, list[int]]] = []

    async def read() -> None:
        events = output.events()
        async for event in events:
            deltas.extend([(time.monotonic(), list(event.delta.token_ids))] * event.HasField("delta"))

    reading = asyncio.create_task(read())
    for token in range(20):
        emit(session, output, token + 10)
        await asyncio.sleep(0.02)
    output.finish(FinishReason.LENGTH)
    await reading
    assert [token for _, token_ids in deltas for token in token_ids] == list(range(10, 30))
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(deltas[:-1])]
    assert min(gaps) > 0.14


async def test_a_client_that_does_not_read_stops_its_own_session() -> None:
    session, output = make_output(max_unread_bytes=1024)
    steps = 0
    while True:
        emit(session, output, 9)
        steps += 1
        try:
            await asyncio.wait_for(output.room(), 0.01)
        except TimeoutError:
            break
    assert 200 < steps < 1200
    events = output.events()
    await anext(events)
    await anext(events)
    await asyncio.wait_for(output.room(), 1)


async def test_an_output_that_no_message_can_hold_is_refused_in_words() -> None:
    session, output = make_output(unary=True, max_unread_bytes=1024, max_message_bytes=2048)
    for _ in range(3000):
        emit(session, output, 9)
    output.finish(FinishReason.LENGTH)
    with pytest.raises(InvalidValue, match=r"3[0-9]{3} bytes; server\.max_message_bytes is 2048: stream it") as refused:
        await collect(output)
    assert refused.value.field == "output.unary"


async def test_a_unary_output_is_refused_as_soon_as_no_message_can_hold_it() -> None:
    """And not when all of it has been made."""
    session, output = make_output(PIECES, unary=True, max_message_bytes=2048)
    with pytest.raises(InvalidValue, match=r"at least 20[0-9]{2} bytes; server\.max_message_bytes is 2048: stream it"):
        await emit_where_there_is_room(session, output, 3000)
    assert 2048 / 8 < session.usage.num_output < 2048 / 4


@pytest.mark.parametrize("logprobs", [None, 2])
async def test_a_unary_output_that_a_message_just_holds_is_sent(logprobs: int | None) -> None:
    async def sent(limit: int) -> list[pb.GenerateResponse]:
        session, output = make_output(PIECES, unary=True, max_message_bytes=limit, logprobs=logprobs)
        await emit_where_there_is_room(session, output, 300)
        output.finish(FinishReason.LENGTH)
        return await collect(output)

    size = (await sent(1 << 20))[1].ByteSize()
    assert len((await sent(size))[1].delta.token_ids) == 300
    with pytest.raises(InvalidValue):
        await sent(size - 1)


async def test_offsets_continue_after_a_continuation_and_its_tokens_are_not_sent_again() -> None:
    """C41: a resumed stream begins where the client's tokens end, the text held back included."""
    session, output = make_output(PIECES, continuation=(1, 2, 3), stop_strings=("beta",))
    emit(session, output, 5)
    output.finish(FinishReason.LENGTH)
    events = await collect(output)
    assert events[1].delta.output_offset == 3
    assert events[1].delta.token_ids == [5]
    assert text_of(events) == "be ga"
    assert events[-1].finished.usage.output_token_count == 1


@pytest.mark.parametrize("sizes", [[5], [1, 1, 1, 1, 1], [2, 3], [3, 2]])
async def test_a_stop_string_ends_the_text_before_it(sizes: list[int]) -> None:
    """C11: "al","pha ","be","ta"," ga" with stop "beta"; usage counts up to the token that completed it."""
    session, output = make_output(PIECES, stop_strings=("beta",))
    token_ids = [1, 2, 3, 4, 5]
    for size in sizes:
        result = emit(session, output, *token_ids[:size])
        del token_ids[:size]
        if session.finish_reason is not None:
            break
    assert session.finish_reason is FinishReason.STOP
    assert result.token_ids[-1] == 4
    output.finish(session.finish_reason)
    events = await collect(output)
    assert text_of(events) == "alpha "
    assert events[-1].finished.stop_matched == "beta"
    assert events[-1].finished.usage.output_token_count == 4
    assert [token for event in events for token in event.delta.token_ids] == [1, 2, 3, 4]


async def test_no_part_of_a_stop_string_leaks_and_nothing_else_is_lost() -> None:
    """C11: "The quick brown"," fox" with stop "own fox", and with stop "own cat"."""
    for stop, text, reason in (
        ("own fox", "The quick br", FinishReason.STOP),
        ("own cat", "The quick brown fox", FinishReason.LENGTH),
    ):
        session, output = make_output(PIECES, stop_strings=(stop,))
        emit(session, output, 6)
        emit(session, output, 7)
        output.finish(session.finish_reason or FinishReason.LENGTH)
        events = await collect(output)
        assert text_of(events) == text
        assert events[-1].finished.finish_reason == pb.FinishReason.Value(f"FINISH_REASON_{reason.name}")


async def test_the_text_of_a_stop_token_is_not_sent_but_the_token_is() -> None:
    """C9: text of [5, 9], usage 3."""
    session, output = make_output(PIECES)
    emit(session, output, 5, 9, 2, finish_reason=FinishReason.STOP, stop_token_id=2)
    output.finish(FinishReason.STOP)
    events = await collect(output)
    assert text_of(events) == " ga!"
    assert events[1].delta.token_ids == [5, 9, 2]
    assert events[-1].finished.stop_matched == "2"
    assert events[-1].finished.usage.output_token_count == 3


async def test_text_held_for_a_stop_string_is_sent_at_the_end() -> None:
    session, output = make_output(PIECES, stop_strings=("beta",))
    emit(session, output, 1, 3)
    output.finish(FinishReason.LENGTH)
    events = await collect(output)
    assert text_of(events) == "albe"


async def test_log_probabilities_that_only_the_policy_asked_for_are_not_sent() -> None:
    session, output = make_output()
    emit(session, output, 9, logprobs=(TokenLogprob(-1.0),))
    output.finish(FinishReason.LENGTH)
    delta = (await collect(output))[1].delta
    assert (list(delta.token_ids), list(delta.logprobs)) == ([9], [])


async def test_steps_that_are_cut_off_from_outside_leave_no_client_waiting() -> None:
    _, output = make_output()
    steps = asyncio.create_task(asyncio.Event().wait())
    steps.cancel()
    await asyncio.wait({steps})
    hand_failure(output, steps)
    async with asyncio.timeout(5):
        with pytest.raises(MeshError, match="cut off"):
            await collect(output)


def test_a_bound_of_what_is_unread_that_no_message_could_keep_is_refused_by_its_key() -> None:
    def load(unread: int, message: int) -> RouterConfig:
        given = {"limits.max_unread_bytes": f"{unread}", "server.max_message_bytes": f"{message}"}
        overrides = {"verifiers": '["v:1"]'} | {key: value for key, value in given.items() if value != "0"}
        return load_config(RouterConfig, path=None, environ={}, overrides=overrides, prefix="X")

    with pytest.raises(
        ConfigError, match=r"^limits\.max_unread_bytes: at most 50000, half of server\.max_message_bytes"
    ):
        load(50_001, 100_000)
    assert load(50_000, 100_000).limits.max_unread_bytes == 50_000
    assert load(0, 100_000).server.max_message_bytes == 100_000

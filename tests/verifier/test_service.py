"""The verifier behind real gRPC: what it says, what it refuses, and that the next request works."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import numpy as np
import pytest
from verifier_parts import make_spec, successor_logits
from verifier_server import Peer, Verifier, opening_messages, service_info, serving, until

from specmesh.runtime import wire
from specmesh.runtime.errors import ContextTooLong, Draining, InvalidValue, MeshError, UnknownField
from specmesh.runtime.philox import draft_draws
from specmesh.runtime.rows import draw_from_row, encode_row
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.types import Block, BlockRefusal, EntryErrorReason, EntryFailure, FinishReason, Rule, Sampling
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import verifier_service_pb2 as pb
from specmesh.verifier.config import LimitsConfig
from specmesh.verifier.service import Tokenizer
from specmesh.verifier.target import TableTarget

COUNTING = successor_logits({}, 32)
LIMITS = LimitsConfig(max_prompt_tokens=40, max_open_chunks=4, max_stop_token_ids=3, max_lease_ms=60_000)


def numbers(start: int, count: int) -> list[int]:
    return [(start + index) % 32 for index in range(count)]


@pytest.fixture
async def verifier() -> AsyncIterator[Verifier]:
    async with serving(TableTarget(COUNTING, max_context_tokens=64), limits=LIMITS) as running:
        yield running


@pytest.fixture
async def peer(verifier: Verifier) -> AsyncIterator[Peer]:
    async with Peer(verifier.address) as connected:
        yield connected


# The texts.


@pytest.mark.parametrize("block_length", [0, 1, 2, 3, 4, 5, 6, 7, 8])
async def test_a_text_is_the_same_with_and_without_drafts(peer: Peer, block_length: int) -> None:
    """C9, C10 through the wire: 11 tokens to the stop id, counted, and nothing after it."""
    spec = make_spec(numbers(0, 5), stop_token_ids=frozenset({15}))
    assert await peer.generate(spec, block_length) == (numbers(5, 11), FinishReason.STOP)


async def test_a_step_says_what_happened_and_where_the_time_went(peer: Peer) -> None:
    await peer.open(make_spec([3], logprobs=2))
    result = await peer.step(1, 1, [4, 9])
    assert (result.token_ids, result.num_accepted, result.num_drafted, result.reward) == ((4, 5), 1, 2, 0.5)
    assert (result.position, result.batch_size, result.finish_reason) == (1, 1, None)
    timing = result.timing
    assert 0 < timing.queue_ns + timing.forward_ns + timing.verify_ns <= timing.total_ns
    assert [len(logprob.top) for logprob in result.logprobs] == [2, 2]


@pytest.mark.parametrize("block", [(), (0, 0, 0, 0)])
async def test_accepted_tokens_carry_their_target_log_probability(block: tuple[int, ...]) -> None:
    """C13: T = [.7, .2, .1], draft 0 accepted: ln .7 = -0.3567; the same with block length 0 and 4."""
    logits = np.log(np.broadcast_to(np.float32([0.7, 0.2, 0.1]), (3, 3, 3)))
    async with serving(TableTarget(logits)) as verifier, Peer(verifier.address) as peer:
        spec = make_spec([1], sampling=Sampling(), rule=Rule.COUPLED, verify_key=5, logprobs=3, max_output_tokens=40)
        await peer.open(spec)
        position = 1
        expected = {0: np.log(0.7), 1: np.log(0.2), 2: np.log(0.1)}
        seen: set[int] = set()
        while True:
            result = await peer.step(1, position, block)
            position += len(result.token_ids)
            for token, logprob in zip(result.token_ids, result.logprobs, strict=True):
                assert logprob.logprob == pytest.approx(expected[token], abs=1e-5)
                assert dict(logprob.top) == pytest.approx(expected, abs=1e-5)
            seen.update(result.token_ids)
            if result.finish_reason is not None:
                break
        assert 0 in seen


async def test_eight_clients_share_forward_passes() -> None:
    target = TableTarget(COUNTING, max_context_tokens=1024, delay_seconds=0.1)
    largest = 0

    async def run(peer: Peer) -> None:
        nonlocal largest
        await peer.open(make_spec([3], peer=peer.name, max_output_tokens=1000))
        for step in range(40):
            result = await peer.step(1, 1 + step)
            assert result.token_ids == ((4 + step) % 32,)
            largest = max(largest, result.batch_size)
            if largest == 8:
                return

    async with serving(target, num_blocks=1024) as verifier, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(Peer(verifier.address, f"router-{index}")) for index in range(8)]
        await asyncio.gather(*(run(peer) for peer in peers))
    assert largest == 8


async def test_the_context_ends_a_text() -> None:
    """C21: prompt 60 of 64, block length 8: 4 tokens, no index error."""
    async with serving(TableTarget(COUNTING, max_context_tokens=64)) as verifier, Peer(verifier.address) as own:
        spec = make_spec(numbers(0, 60))
        assert await own.generate(spec, 8) == (numbers(60, 4), FinishReason.LENGTH)


async def test_nan_in_one_row_ends_one_session() -> None:
    """C6: a batch of three."""
    logits = COUNTING.copy()
    logits[:, 20] = np.nan
    async with serving(TableTarget(logits)) as running, Peer(running.address) as peer:
        for session_id, token in ((1, 3), (2, 20), (3, 7)):
            await peer.open(make_spec([token], session_id=session_id))
        await peer.send(*(wire.block_to_entry(session_id, Block(1)) for session_id in (1, 2, 3)))
        failure = await peer.receive(2)
        assert isinstance(failure, EntryFailure)
        assert failure.reason is EntryErrorReason.NON_FINITE_LOGITS
        for session_id, token in ((1, 4), (3, 8)):
            answer = await peer.receive(session_id)
            assert not isinstance(answer, EntryFailure)
            assert answer.token_ids == (token,)
        assert (await peer.fail(2, 1)).reason is EntryErrorReason.UNKNOWN_SESSION


# Drafts that lie.


def sampled_block(draft_key: int, position: int, length: int) -> tuple[list[int], list[bytes]]:
    """What an honest draft with a uniform row over 32 ids sends."""
    weights = np.full(32, (1 << 24) // 32)
    tokens = [draw_from_row(weights, draw) for draw in draft_draws(draft_key, position, length).tolist()]
    return tokens, [encode_row(np.arange(32), weights)] * length


def lying_blocks(draft_key: int, position: int) -> dict[BlockRefusal, tuple[list[int], list[bytes]]]:
    tokens, rows = sampled_block(draft_key, position, 4)
    rare = encode_row(np.array([0, 1]), np.array([1, (1 << 24) - 1]))
    return {
        BlockRefusal.RESAMPLE_MISMATCH: ([0] * 4, [rare] * 4),
        BlockRefusal.MALFORMED_ROW: (tokens, [*rows[:3], rows[3][:-1]]),
        BlockRefusal.TOKEN_OUT_OF_VOCABULARY: ([*tokens[:3], 32], []),
        BlockRefusal.TOKEN_OUT_OF_ROW: ([*tokens[:3], 7], [*rows[:3], rare]),
        BlockRefusal.TOO_LONG: (numbers(4, 17), []),
    }


@pytest.mark.parametrize("refusal", list(BlockRefusal))
async def test_a_block_that_lies_is_refused_and_the_request_goes_on(peer: Peer, refusal: BlockRefusal) -> None:
    """C35: among them token 0 sent always, declared with weight 1 of 2^24."""
    await peer.open(make_spec([3], sampling=Sampling(), max_output_tokens=60))
    position = 1
    for _ in range(5):
        tokens, rows = lying_blocks(22, position)[refusal]
        result = await peer.step(1, position, tokens, rows)
        assert (result.block_refusal, result.num_drafted, len(result.token_ids)) == (refusal, 0, 1)
        position += 1
    tokens, rows = sampled_block(22, position, 4)
    result = await peer.step(1, position, tokens, rows)
    assert (result.block_refusal, result.num_drafted) == (None, 4)


async def test_under_coupled_no_lie_changes_the_text(peer: Peer) -> None:
    """C38."""
    texts: list[list[int]] = []
    for session_id, refusal in enumerate([None, *BlockRefusal], start=1):
        spec = make_spec(
            [3], session_id=session_id, sampling=Sampling(temperature=3.0), rule=Rule.COUPLED, verify_key=99,
            max_output_tokens=30,
        )  # fmt: skip
        await peer.open(spec)
        texts.append([])
        while len(texts[-1]) < 30:
            position = 1 + len(texts[-1])
            tokens, rows = ([], []) if refusal is None else lying_blocks(22, position)[refusal]
            texts[-1] += (await peer.step(session_id, position, tokens, rows)).token_ids
    assert all(text == texts[0] for text in texts)
    assert len(set(texts[0])) > 5


# Sessions.


async def test_resuming_over_the_wire_gives_the_same_text(peer: Peer) -> None:
    sampling = Sampling(temperature=2.0)
    whole = make_spec([3], sampling=sampling, rule=Rule.COUPLED, verify_key=7, max_output_tokens=20)
    text, _ = await peer.generate(whole, 3)
    rest = make_spec(
        [3, *text[:9]], prompt_length=1, session_id=2, sampling=sampling, rule=Rule.COUPLED, verify_key=7,
        max_output_tokens=20,
    )  # fmt: skip
    resumed, reason = await peer.generate(rest, 2)
    assert (resumed, reason) == (text, FinishReason.LENGTH)


async def test_a_session_belongs_to_the_peer_that_opened_it(verifier: Verifier, peer: Peer) -> None:
    await peer.open(make_spec([3]))
    async with Peer(verifier.address, "stranger") as stranger:
        assert (await stranger.fail(1, 1)).reason is EntryErrorReason.UNKNOWN_SESSION
        await stranger.close(1)
        assert (await stranger.fail(1, 1)).reason is EntryErrorReason.UNKNOWN_SESSION
    assert (await peer.step(1, 1)).token_ids == (4,)


async def test_a_stream_without_a_peer_is_refused(verifier: Verifier, peer: Peer) -> None:
    call = peer.stub.Verify()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert from_rpc_error(caught.value).field == "specmesh-peer"


async def test_close_and_lost_streams_free_all_blocks(verifier: Verifier, peer: Peer) -> None:
    """C22: cancelled after 3 of many tokens, 100 times; then a stream lost without a word."""
    for _ in range(100):
        await peer.open(make_spec([3]))
        for position in (1, 2, 3):
            await peer.step(1, position)
        await peer.close(1)
    await until(lambda: verifier.blocks_in_use == 0, seconds=1)
    async with Peer(verifier.address, "killed") as killed:
        for session_id in range(10):
            await killed.open(make_spec([3], peer="killed", session_id=session_id, lease_ms=100))
        await killed.send(*(wire.block_to_entry(session_id, Block(1)) for session_id in range(10)))
    await until(lambda: verifier.blocks_in_use == 0, seconds=1)
    assert verifier.engine.num_sessions == 0


async def test_a_peer_that_comes_back_within_the_lease_goes_on(verifier: Verifier, peer: Peer) -> None:
    async with Peer(verifier.address, "r") as first:
        await first.open(make_spec([3], peer="r"))
        await first.step(1, 1)
    async with Peer(verifier.address, "r") as second:
        assert (await second.step(1, 2)).token_ids == (5,)


async def test_entry_errors_do_not_end_the_stream(peer: Peer) -> None:
    await peer.open(make_spec([3]))
    assert (await peer.fail(99, 1)).reason is EntryErrorReason.UNKNOWN_SESSION
    assert (await peer.fail(1, 7)).reason is EntryErrorReason.CONTEXT_MISMATCH
    assert (await peer.step(1, 1)).token_ids == (4,)


async def test_an_entry_that_comes_too_late_is_not_computed() -> None:
    async with serving(TableTarget(COUNTING, delay_seconds=0.1)) as slow, Peer(slow.address) as peer:
        await peer.open(make_spec([3]))
        await peer.open(make_spec([3], session_id=2))
        await peer.send(wire.block_to_entry(1, Block(1)))
        await until(lambda: slow.engine.counters.get("ticks") == 1)
        answer = await peer.ask(2, Block(1), remaining_ms=1)
        assert isinstance(answer, EntryFailure)
        assert answer.reason is EntryErrorReason.DEADLINE_EXCEEDED
        assert (await peer.step(2, 1)).token_ids == (4,)


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (pb.VerifyRequestEntry(after=draft_pb.StepOutcome(position=1)), "after"),
        (pb.VerifyRequestEntry(after=draft_pb.StepOutcome()), "after"),
        (pb.VerifyRequestEntry(run_count=4), "run_count"),
        (pb.VerifyRequestEntry.FromString(b"\xf8\x07\x01"), "127"),
    ],
)
async def test_fields_that_are_not_served_are_refused_by_name(
    peer: Peer, entry: pb.VerifyRequestEntry, field: str
) -> None:
    """C40 at this service: nothing is skipped."""
    await peer.open(make_spec([3]))
    entry.session_id, entry.position = 1, 1
    await peer.send(entry)
    failure = await peer.receive(1)
    assert isinstance(failure, EntryFailure)
    assert failure.reason is EntryErrorReason.INVALID_VALUE
    assert field in failure.message
    assert (await peer.step(1, 1)).token_ids == (4,)


async def test_an_unknown_field_of_the_frame_ends_the_stream(peer: Peer) -> None:
    await peer.call.write(pb.VerifyRequest.FromString(b"\xf8\x07\x01"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await peer.call.read()
    assert isinstance(from_rpc_error(caught.value), UnknownField)


async def test_a_peer_that_does_not_read_is_reset() -> None:
    limits = LimitsConfig(max_unread_entries=50)
    async with serving(TableTarget(COUNTING), limits=limits) as verifier, Peer(verifier.address) as peer:
        await peer.send(*(wire.block_to_entry(session_id, Block(1)) for session_id in range(100)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await peer.read_all()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with Peer(verifier.address) as other:
            await other.open(make_spec([3]))
            assert (await other.step(1, 1)).token_ids == (4,)


# Openings that are refused.


async def refused(peer: Peer, messages: Sequence[pb.VerifierServiceOpenRequest]) -> MeshError:
    """The error of an `Open`, which came in under a second, and after which a good one works."""
    started = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await peer.stub.Open(iter(messages))
    assert time.monotonic() - started < 1
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await peer.open(make_spec([3], session_id=77))
    assert (await peer.step(77, 1)).token_ids == (4,)
    return from_rpc_error(caught.value)


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"context": []}, "prompt_length", "at least one"),
        ({"context": numbers(0, 41)}, "prompt_length", "max_prompt_tokens: 40"),
        ({"context": numbers(0, 64), "prompt_length": 1}, "context_length", "max_context_tokens: 64"),
        ({"context": numbers(0, 600_000), "prompt_length": 1}, "context_length", "max_context_tokens: 64"),
        ({"context": [3], "prompt_length": 2}, "prompt_length", "2 of a context of 1"),
        ({"context": [3, 32]}, "token_ids", "vocabulary of 32"),
        ({"stop_token_ids": frozenset({32})}, "stop_token_ids", "vocabulary of 32"),
        ({"stop_token_ids": frozenset({1, 2, 3, 4})}, "stop_token_ids", "max_stop_token_ids: 3"),
        ({"sampling": Sampling(logit_bias=((32, 1.0),))}, "sampling.logit_bias", "vocabulary of 32"),
        ({"logprobs": 21}, "logprobs", "max_logprobs: 20"),
        ({"lease_ms": 0}, "lease_ms", "max_lease_ms: 60000"),
        ({"lease_ms": 60_001}, "lease_ms", "max_lease_ms: 60000"),
        ({"max_output_tokens": 0}, "max_output_tokens", "0"),
        ({"context": [3, 4, 5], "prompt_length": 1, "max_output_tokens": 2}, "max_output_tokens", "2 are emitted"),
        ({"context": [3, 4], "prompt_length": 1, "stop_token_ids": frozenset({4})}, "token_ids", "has ended"),
        ({"peer": ""}, "peer", "empty"),
    ],
)
async def test_an_opening_out_of_bounds_is_refused_by_name(
    peer: Peer, changes: dict[str, object], field: str, said: str
) -> None:
    """C21: empty prompt, one over the context, 2 MB."""
    error = await refused(peer, opening_messages(**changes))
    assert isinstance(error, ContextTooLong if "max_context" in said or "max_prompt" in said else InvalidValue)
    assert error.field == field
    assert said in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0), ("temperature", float("nan")), ("temperature", float("inf")),
        ("top_p", 0.0), ("top_p", -0.1), ("top_p", 1.5), ("top_p", float("nan")),
        ("min_p", -0.1), ("min_p", 1.1), ("repetition_penalty", 0.0), ("frequency_penalty", float("inf")),
    ],
)  # fmt: skip
async def test_sampling_that_has_no_law_is_refused_by_name(peer: Peer, field: str, value: float) -> None:
    """C17."""
    messages = opening_messages()
    setattr(messages[0].header.sampling, field, value)
    error = await refused(peer, messages)
    assert error.field == f"sampling.{field}"


async def test_extreme_sampling_is_served(peer: Peer) -> None:
    """C17: temperature 1e-40 is arg-max, top-k 9,999,999 means off, both ends of the seeds are reproducible."""
    cold = make_spec([3], session_id=1, sampling=Sampling(temperature=1e-40, top_k=9_999_999), max_output_tokens=6)
    assert (await peer.generate(cold))[0] == numbers(4, 6)
    for seed in (0, 2**64 - 1):
        texts = []
        for _ in range(2):
            sampled = make_spec(
                [3], session_id=2, sampling=Sampling(temperature=3.0), rule=Rule.COUPLED, verify_key=seed,
                max_output_tokens=20,
            )  # fmt: skip
            texts.append((await peer.generate(sampled))[0])
        assert texts[0] == texts[1]


def spoilt_openings() -> dict[str, list[pb.VerifierServiceOpenRequest]]:
    chunk = pb.VerifierServiceOpenRequest(token_ids=[3])
    short = opening_messages(context=[3, 4])
    del short[0].token_ids[1:]
    no_rule = opening_messages()
    no_rule[0].header.rule = 0
    unknown = opening_messages()
    unknown[0].header.MergeFromString(b"\xf8\x07\x01")
    big = opening_messages(context=[3], max_output_tokens=5)
    big[0].token_ids.extend([3] * 16_384)
    announced = opening_messages(context=[3, 3, 3, 3, 3, 3])
    del announced[0].token_ids[:]
    return {
        "header": [chunk],
        "header again": opening_messages() * 2,
        "context_length": [*opening_messages(), chunk],
        "context_length short": short,
        "token_ids chunks": [*announced, *[chunk] * 5],
        "token_ids size": big,
        "rule": no_rule,
        "header.127": unknown,
    }


@pytest.mark.parametrize("fault", list(spoilt_openings()))
async def test_a_malformed_opening_is_refused_by_name(peer: Peer, fault: str) -> None:
    error = await refused(peer, spoilt_openings()[fault])
    assert error.field == fault.split()[0]


async def test_an_opening_without_a_message_is_refused(peer: Peer) -> None:
    assert (await refused(peer, [])).field == "context_length"


# What it says of itself.


async def test_get_info_says_what_and_how_busy() -> None:
    info = service_info(vocabulary_hashes=b"\1\2\3\4" * 32)
    tokenizer = Tokenizer(eos_token_ids=(2, 5))
    async with serving(TableTarget(COUNTING), info=info, tokenizer=tokenizer) as running, Peer(running.address) as own:
        await own.open(make_spec([3], max_output_tokens=40))
        said = await own.stub.GetInfo(pb.VerifierServiceGetInfoRequest())
        assert said.info.vocabulary_hashes == b""
        assert (said.session_count, said.block_count, said.free_block_count) == (1, 256, 253)
        assert said.eos_token_ids == [2, 5]
        full = await own.stub.GetInfo(pb.VerifierServiceGetInfoRequest(want_vocabulary=True))
        assert wire.service_info_from_proto(full.info) == info


async def test_the_tokenizer_comes_in_chunks() -> None:
    content = bytes(range(256)) * 4096
    tokenizer = Tokenizer(content, "{{ messages }}", (("eos_token", "</s>"),), (2,))
    async with serving(TableTarget(COUNTING), tokenizer=tokenizer) as running, Peer(running.address) as peer:
        chunks = [chunk async for chunk in peer.stub.GetTokenizer(pb.VerifierServiceGetTokenizerRequest())]
    assert len(chunks) > 1
    assert b"".join(chunk.tokenizer_json for chunk in chunks) == content
    first = chunks[0]
    assert (first.chat_template, dict(first.special_tokens)) == ("{{ messages }}", {"eos_token": "</s>"})
    assert (first.tokenizer_digest, list(first.eos_token_ids)) == ("cd" * 32, [2])
    assert all(not chunk.chat_template for chunk in chunks[1:])


# Drain and death.


async def test_a_drain_lets_live_sessions_finish_and_takes_no_new_ones(verifier: Verifier, peer: Peer) -> None:
    """C32."""
    await peer.open(make_spec([3], max_output_tokens=6))
    await peer.step(1, 1)
    assert not peer.draining
    draining = asyncio.ensure_future(verifier.server.drain(verifier.engine.wait_empty))
    await verifier.server.draining.wait()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await peer.open(make_spec([3], session_id=2))
    assert isinstance(from_rpc_error(caught.value), Draining)
    output: list[int] = []
    while len(output) < 5:
        output += (await peer.step(1, 2 + len(output))).token_ids
    assert output == numbers(5, 5)
    assert peer.draining
    async with asyncio.timeout(5):
        await draining


async def test_a_dead_engine_ends_the_streams(verifier: Verifier, peer: Peer) -> None:
    await peer.open(make_spec([3]))
    await peer.step(1, 1)
    verifier.service.fail(MeshError("the engine has failed"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await peer.read_all()
    assert caught.value.code() is grpc.StatusCode.INTERNAL

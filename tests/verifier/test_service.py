"""The verifier behind real gRPC: what it says, what it refuses, and that the next request works."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import numpy as np
import pytest
from verifier_parts import COUNTING, make_spec, numbers
from verifier_server import Peer, Verifier, service_info, serving

from specmesh.runtime import wire
from specmesh.runtime.errors import Draining, MeshError
from specmesh.runtime.philox import draft_draws
from specmesh.runtime.rows import draw_from_row, encode_row
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.types import Block, BlockRefusal, EntryErrorReason, EntryFailure, FinishReason, Rule, Sampling
from specmesh.v1 import verifier_service_pb2 as pb
from specmesh.verifier.service import Tokenizer
from specmesh.verifier.target import TableTarget

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

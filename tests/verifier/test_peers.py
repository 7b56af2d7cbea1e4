"""Sessions over real gRPC: whose they are, how they end, and what is wrong with an entry."""

import grpc
import grpc.aio
import pytest
from verifier_parts import COUNTING, make_spec
from verifier_server import Peer, Verifier, serving, until

from specmesh.runtime import wire
from specmesh.runtime.errors import UnknownField
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.types import (
    Block,
    EntryErrorReason,
    EntryFailure,
    FinishReason,
    Outcome,
    Rule,
    Sampling,
    StepResult,
)
from specmesh.v1 import verifier_service_pb2 as pb
from specmesh.verifier.config import LimitsConfig
from specmesh.verifier.target import TableTarget


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


async def test_a_field_that_is_not_known_is_refused_by_name(peer: Peer) -> None:
    """C40 at this service: nothing is skipped."""
    await peer.open(make_spec([3]))
    entry = pb.VerifyRequestEntry.FromString(b"\xf8\x07\x01")
    entry.session_id, entry.position = 1, 1
    await peer.send(entry)
    failure = await peer.receive(1)
    assert isinstance(failure, EntryFailure)
    assert failure.reason is EntryErrorReason.INVALID_VALUE
    assert "127" in failure.message
    assert (await peer.step(1, 1)).token_ids == (4,)


async def test_conditional_blocks_and_runs_over_the_wire(peer: Peer) -> None:
    """A block sent ahead is answered without another request; a run is answered token by token."""
    await peer.open(make_spec([3]))
    ahead = Block(3, (6, 7), after=Outcome(1, 1, 5))
    other = Block(3, (9, 9), after=Outcome(1, 1, 6))
    blocks = (Block(1, (4,)), ahead, other)
    await peer.send(*(wire.block_to_entry(1, block) for block in blocks))
    answers = [await peer.receive(1) for _ in range(2)]
    assert [answer.token_ids for answer in answers if isinstance(answer, StepResult)] == [(4, 5), (6, 7, 8)]
    await peer.send(wire.block_to_entry(1, Block(6, run_count=4)))
    run = [await peer.receive(1) for _ in range(4)]
    assert [(a.position, a.token_ids) for a in run if isinstance(a, StepResult)] == [
        (6 + at, (9 + at,)) for at in range(4)
    ]
    assert (await peer.step(1, 10)).token_ids == (13,)


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

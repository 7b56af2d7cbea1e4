"""Frames: what is ready together travels together."""

import asyncio

from verifier_parts import make_spec, successor_logits
from verifier_server import Peer, serving

from specmesh.runtime import wire
from specmesh.runtime.types import Block
from specmesh.verifier.target import TableTarget

SESSIONS = range(1, 9)


async def test_a_tick_answers_each_router_in_one_frame() -> None:
    """Two routers, eight sessions each, six steps: a router gets no more frames than there were ticks."""
    target = TableTarget(successor_logits({}, 32), max_context_tokens=256, delay_seconds=0.02)
    async with (
        serving(target, num_blocks=1024) as verifier,
        Peer(verifier.address, "one") as one,
        Peer(verifier.address, "two") as two,
    ):
        frames = await asyncio.gather(six_steps(one), six_steps(two))
        assert max(frames) <= verifier.engine.counters["ticks"] < 6 * len(SESSIONS)


async def six_steps(peer: Peer) -> int:
    """How many frames the answers came in."""
    num_frames = 0
    for session_id in SESSIONS:
        await peer.open(make_spec([3], peer=peer.name, session_id=session_id))
    for position in range(1, 7):
        await peer.send(*(wire.block_to_entry(session_id, Block(position)) for session_id in SESSIONS))
        answered: list[int] = []
        while len(answered) < len(SESSIONS):
            frame = await peer.call.read()
            num_frames += 1
            answered += [entry.session_id for entry in frame.entries]
            assert {tuple(entry.token_ids) for entry in frame.entries} == {((3 + position) % 32,)}
        assert sorted(answered) == list(SESSIONS)
    return num_frames

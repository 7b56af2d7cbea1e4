"""C24: what a drafted token costs on the wire, both ways, counted in the frames that travel."""

from dataclasses import dataclass

import numpy as np
import pytest
from draft_peers import ask_for, draft_peer, table_drafter

from specmesh.draft.admission import EngineLimits
from specmesh.draft.engine import Stopping
from specmesh.draft.ngram_file import Level, NgramTable
from specmesh.runtime.rows import decode_row
from specmesh.runtime.types import Block, Sampling
from specmesh.runtime.wire import block_to_entry
from specmesh.v1 import draft_service_pb2 as pb
from specmesh.v1 import verifier_service_pb2 as verifier_pb

VOCABULARY = 152_064
LENGTH = 8


def prose_like() -> NgramTable:
    """One law that holds 0.995 of its mass in a few dozen ids at temperature 0.7 and in thousands at 1.0.

    A real target's rows do so on prose: 24 ids at 0.7, 2,306 at 1.0. The likely ids are the last ones, as long on the
    wire as any.
    """
    probs = np.arange(VOCABULARY, 0, -1) ** -1.67
    level = Level(0, np.zeros(1, np.uint64), np.array([0, VOCABULARY]), np.arange(VOCABULARY, dtype=np.uint32), probs)
    return NgramTable((level,), VOCABULARY)


def ids_that_hold(mass: float, temperature: float) -> int:
    probs = np.arange(1, VOCABULARY + 1) ** (-1.67 / temperature)
    return int(np.searchsorted(np.cumsum(probs / probs.sum()), mass)) + 1


@pytest.mark.parametrize(("temperature", "most_bytes"), [(0.7, 400), (1.0, 1_040)])
async def test_a_drafted_token_costs_few_bytes_on_the_wire(temperature: float, most_bytes: int) -> None:
    """C24: the median block, per token; its answer from the draft and its entry to the verifier."""
    assert ids_that_hold(0.995, 1.0) > 128 > 45 > ids_that_hold(0.995, 0.7) > 20
    blocks = await blocks_of(Sampling(temperature=temperature), Stopping())
    assert np.median([each.answered / LENGTH for each in blocks]) <= most_bytes
    assert np.median([each.verified / LENGTH for each in blocks]) <= most_bytes


@pytest.mark.parametrize(("temperature", "most_bytes"), [(0.7, 400), (1.0, 1_040)])
async def test_a_token_that_travels_alone_costs_its_row_and_a_small_envelope(
    temperature: float, most_bytes: int
) -> None:
    """C24, where a draft may still stop early: one entry a token.

    The first one of a block names its session, the others their block only; the end is one more. So a token costs 12
    bytes besides its row, and the whole answer, first entry and end in it, under 17 a token.
    """
    for each in await blocks_of(Sampling(temperature=temperature), Stopping(min_probability=1e-9)):
        assert len(each.tokens) == LENGTH
        assert np.median(each.tokens) <= most_bytes
        assert each.answered - each.rows < 17 * LENGTH


@dataclass(frozen=True)
class Cost:
    """Bytes of one block of `LENGTH` tokens: of its rows alone, as the draft answers, as the verifier is asked.

    `tokens`: of a frame that holds one entry with tokens and nothing else, for each such entry.
    """

    rows: int
    answered: int
    verified: int
    tokens: list[int]


async def blocks_of(sampling: Sampling, stopping: Stopping) -> list[Cost]:
    costs = []
    async with draft_peer(table_drafter(prose_like()), limits=EngineLimits(), stopping=stopping) as peer:
        for number in range(20):
            context, before = [*range(1000), number], len(peer.talk.frames)
            ask = ask_for(context, len(context), LENGTH, session_id=(1 << 60) + number, sampling=sampling)
            answer = await peer.talk.ask(ask)
            assert len(answer.rows) == len(answer.token_ids) == LENGTH
            assert max(len(decode_row(row)[0]) for row in answer.rows) <= 128
            frames = peer.talk.frames[before:]
            block = Block(ask.position, tuple(answer.token_ids), tuple(answer.rows))
            asked = verifier_pb.VerifyRequest(entries=[block_to_entry(ask.session_id, block, remaining_ms=60_000)])
            entries = [entry for frame in frames for entry in frame.entries]
            tokens = [pb.DraftResponse(entries=[e]).ByteSize() for e in entries if e.HasField("tokens") or e.row]
            answered = sum(frame.ByteSize() for frame in frames)
            costs.append(Cost(sum(map(len, answer.rows)), answered, asked.ByteSize(), tokens))
    return costs

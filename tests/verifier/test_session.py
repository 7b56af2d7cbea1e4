"""What a step adds to a text: boundaries, counts and the place in the cache."""

import pytest
from verifier_parts import Collector, make_spec

from specmesh.runtime.types import FinishReason, Sampling
from specmesh.verifier.session import Entry, Session

STOP = 2


def session(context_length: int = 1, *, max_context_tokens: int = 1000, **changes: object) -> Session:
    spec = make_spec([0] * context_length, stop_token_ids=frozenset({STOP}), **changes)
    return Session(spec, max_context_tokens=max_context_tokens, now_ns=0)


def test_nothing_after_a_stop_token_is_emitted_or_counted() -> None:
    """C9: EOS inside an accepted block."""
    live = session()
    emission = live.commit([5, 9, STOP, 7], 4, 3)
    assert emission.token_ids == (5, 9, STOP)
    assert (emission.num_accepted, emission.num_drafted) == (3, 3)
    assert (emission.finish_reason, emission.stop_token_id) == (FinishReason.STOP, STOP)
    assert live.context == [0, 5, 9, STOP]


@pytest.mark.parametrize(
    ("max_output_tokens", "emitted", "reason"),
    [
        (5, (10, 11, STOP), FinishReason.STOP),
        (2, (10, 11), FinishReason.LENGTH),
        (3, (10, 11, STOP), FinishReason.STOP),
        (1, (10,), FinishReason.LENGTH),
    ],
)
def test_the_first_boundary_wins_and_a_tie_goes_to_the_stop(
    max_output_tokens: int, emitted: tuple[int, ...], reason: FinishReason
) -> None:
    """C10."""
    live = session(max_output_tokens=max_output_tokens)
    emission = live.commit([10, 11, STOP, 20, 21, 22], 6, 23)
    assert (emission.token_ids, emission.finish_reason) == (emitted, reason)
    assert emission.num_accepted == emission.num_drafted == len(emitted)


def test_the_token_after_the_block_can_be_the_stop() -> None:
    emission = session().commit([5, 6], 1, STOP)
    assert (emission.token_ids, emission.num_accepted, emission.num_drafted) == ((5, STOP), 1, 2)
    assert emission.finish_reason is FinishReason.STOP


def test_the_end_of_the_context_is_a_length_boundary() -> None:
    live = session(60, max_context_tokens=64)
    assert live.room == 4
    emission = live.commit([5, 6, 7], 3, 8)
    assert (emission.token_ids, emission.finish_reason) == ((5, 6, 7, 8), FinishReason.LENGTH)


@pytest.mark.parametrize(("num_accepted", "cached", "position"), [(2, 13, 14), (0, 11, 12), (4, 15, 16)])
def test_the_cache_ends_one_token_before_the_context(num_accepted: int, cached: int, position: int) -> None:
    """C15: position 11 with 10 cached, block of 4."""
    live = session(11)
    live.prefilled(10)
    live.commit([5, 6, 7, 8], num_accepted, 9)
    assert (live.cached, live.position, live.uncached) == (cached, position, 1)


def test_a_block_is_cut_to_the_room_there_is() -> None:
    live = session(60, max_context_tokens=64)
    live.take(Entry(Collector(), 60, (5,) * 8, (), None, 0))
    assert live.entry is not None
    assert len(live.entry.token_ids) == 3


def test_tokens_are_counted_for_penalties_only() -> None:
    penalised = session(3, sampling=Sampling(temperature=0.0, frequency_penalty=0.5))
    penalised.commit([5, 6], 1, 6)
    assert penalised.counts == {0: 3, 5: 1, 6: 1}
    assert session(3).counts is None


def test_a_continuation_counts_as_output() -> None:
    live = session(5, prompt_length=2, max_output_tokens=4)
    assert live.room == 1

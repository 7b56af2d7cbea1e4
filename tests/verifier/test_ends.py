"""Which sessions are admitted and how they end, stepped by hand with a clock that is set by hand."""

import pytest
from verifier_parts import (
    COUNTING,
    MS,
    Collector,
    FailingTarget,
    Stepper,
    make_spec,
    numbers,
    table_stepper,
)

from specmesh.runtime.errors import Draining, MeshError, Overloaded
from specmesh.runtime.types import EntryErrorReason, FinishReason, StepResult
from specmesh.verifier.batcher import TickLimits

# Memory.


def blocks_in_use(stepper: Stepper) -> int:
    return stepper.backend.num_blocks - stepper.backend.num_free_blocks


def test_what_does_not_fit_waits_until_memory_is_free() -> None:
    stepper = table_stepper(COUNTING, num_blocks=4)
    stepper.open(make_spec(numbers(0, 33), max_output_tokens=31))
    stepper.open(make_spec([3], session_id=2, max_output_tokens=10))
    assert stepper.settled == {1: None}
    stepper.core.close(("router", 1))
    stepper.flush()
    assert stepper.settled == {1: None, 2: None}
    assert stepper.step(2, 1).token_ids == (4,)


def test_no_more_sessions_are_open_than_may_be() -> None:
    stepper = table_stepper(COUNTING, max_sessions=2)
    for session_id in (1, 2, 3):
        stepper.open(make_spec([3], session_id=session_id))
    assert stepper.settled == {1: None, 2: None}
    stepper.core.close(("router", 1))
    stepper.flush()
    assert stepper.settled[3] is None
    assert set(stepper.core.sessions) == {("router", 2), ("router", 3)}


def test_higher_priority_is_admitted_first_and_equals_in_order() -> None:
    stepper = table_stepper(COUNTING, num_blocks=1)
    for session_id, priority in ((1, 0), (2, 0), (3, 5), (4, 0)):
        stepper.open(make_spec([3], session_id=session_id, priority=priority, max_output_tokens=10))
    admitted = []
    for _ in range(4):
        ((_, session_id),) = stepper.core.sessions
        admitted.append(session_id)
        stepper.core.close(("router", session_id))
    assert admitted == [1, 3, 2, 4]


def test_a_small_session_does_not_overtake_a_large_one() -> None:
    stepper = table_stepper(COUNTING, num_blocks=4)
    stepper.open(make_spec([3], max_output_tokens=20))
    stepper.open(make_spec(numbers(0, 40), session_id=2, max_output_tokens=24))
    stepper.open(make_spec([3], session_id=3, max_output_tokens=5))
    assert set(stepper.settled) == {1}


def test_a_full_queue_refuses_with_a_named_limit() -> None:
    stepper = table_stepper(COUNTING, num_blocks=1, max_waiting=2)
    for session_id in (1, 2, 3, 4):
        stepper.open(make_spec([3], session_id=session_id, max_output_tokens=10))
    error = stepper.settled[4]
    assert isinstance(error, Overloaded)
    assert "max_waiting_sessions: 2" in error.message
    assert set(stepper.settled) == {1, 4}


def test_with_no_queue_at_all_what_fits_is_admitted() -> None:
    stepper = table_stepper(COUNTING, num_blocks=1, max_waiting=0)
    stepper.open(make_spec([3], max_output_tokens=10))
    stepper.open(make_spec([3], session_id=2, max_output_tokens=10))
    assert stepper.settled[1] is None
    assert isinstance(stepper.settled[2], Overloaded)


def test_opening_again_replaces_the_session() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3, 4]))
    stepper.step(1, 2, [5, 6])
    before = blocks_in_use(stepper)
    stepper.open(make_spec([9]))
    assert blocks_in_use(stepper) == before
    assert stepper.step(1, 1).token_ids == (10,)


def test_two_peers_may_use_the_same_id() -> None:
    stepper = table_stepper(COUNTING)
    other = Collector("other")
    stepper.open(make_spec([3]))
    stepper.open(make_spec([9], peer="other"))
    stepper.send(1, 1)
    stepper.send(1, 1, stream=other)
    stepper.tick()
    assert [a.token_ids for a in stepper.stream.answers if isinstance(a, StepResult)] == [(4,)]
    assert [a.token_ids for a in other.answers if isinstance(a, StepResult)] == [(10,)]


# Ends.


def test_a_session_ends_when_its_lease_does() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3], lease_ms=100))
    stepper.clock.pass_ms(90)
    stepper.step(1, 1)
    stepper.clock.pass_ms(99)
    stepper.core.sweep()
    assert stepper.core.sessions
    stepper.clock.pass_ms(1)
    stepper.core.sweep()
    assert not stepper.core.sessions
    assert blocks_in_use(stepper) == 0


def test_a_sweep_is_due_no_later_than_the_first_lease_that_can_end() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3], lease_ms=100))
    stepper.open(make_spec([3], session_id=2, lease_ms=50))
    assert stepper.core.next_sweep_ns == stepper.clock() + 50 * MS


def test_a_lease_does_not_end_while_the_peer_waits_for_an_answer() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3], lease_ms=100))
    stepper.send(1, 1)
    for _ in range(5):
        stepper.clock.pass_ms(80)
        stepper.core.sweep()
    stepper.tick()
    assert isinstance(stepper.stream.answers[-1], StepResult)


def test_entries_of_a_lost_stream_are_not_computed_and_the_lease_goes_on() -> None:
    target = FailingTarget()
    stepper = Stepper(target)
    stepper.open(make_spec([3], lease_ms=100))
    stepper.send(1, 1)
    stepper.core.lose_stream(stepper.stream)
    stepper.tick()
    assert (target.batches, stepper.stream.answers) == ([], [])
    again = Collector()
    stepper.send(1, 1, stream=again)
    stepper.tick()
    assert isinstance(again.answers[-1], StepResult)
    stepper.core.lose_stream(again)
    stepper.clock.pass_ms(100)
    stepper.core.sweep()
    assert blocks_in_use(stepper) == 0


def test_a_session_ends_when_its_own_time_has_passed() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3]), deadline_ns=stepper.clock() + 10 * MS)
    stepper.send(1, 1)
    stepper.clock.pass_ms(10)
    stepper.core.sweep()
    stepper.flush()
    assert stepper.failure().reason is EntryErrorReason.DEADLINE_EXCEEDED
    assert blocks_in_use(stepper) == 0


def test_an_opening_whose_time_has_passed_leaves_the_queue() -> None:
    stepper = table_stepper(COUNTING, num_blocks=1)
    stepper.open(make_spec([3], max_output_tokens=10))
    stepper.open(make_spec([3], session_id=2, max_output_tokens=10), deadline_ns=stepper.clock() + 10 * MS)
    stepper.clock.pass_ms(10)
    stepper.core.sweep()
    stepper.flush()
    assert isinstance(stepper.settled[2], Overloaded)
    assert len(stepper.core.waiting) == 0


def test_an_abandoned_opening_leaves_nothing_behind_and_not_what_replaced_it() -> None:
    stepper = table_stepper(COUNTING, num_blocks=1)
    first = stepper.open(make_spec([3], max_output_tokens=10))
    waiting = stepper.open(make_spec([3], session_id=2, max_output_tokens=10))
    stepper.core.abandon(waiting)
    assert len(stepper.core.waiting) == 0
    stepper.open(make_spec([5], max_output_tokens=10))
    stepper.core.abandon(first)
    assert stepper.step(1, 1).token_ids == (6,)


def test_closing_a_waiting_session_takes_it_out_of_the_queue() -> None:
    stepper = table_stepper(COUNTING, num_blocks=1)
    stepper.open(make_spec([3], max_output_tokens=10))
    stepper.open(make_spec([3], session_id=2, max_output_tokens=10))
    stepper.core.close(("router", 2))
    stepper.flush()
    assert isinstance(stepper.settled[2], MeshError)
    assert len(stepper.core.waiting) == 0


@pytest.mark.parametrize("moment", ["idle", "prefilling", "pending"])
def test_a_close_frees_everything(moment: str) -> None:
    """C22, and C15: cancel mid-step, then the same prompt gives the same answer as cold."""
    stepper = table_stepper(COUNTING, limits=TickLimits(64, 10))
    stepper.open(make_spec(numbers(0, 30)))
    if moment == "prefilling":
        stepper.tick()
    elif moment == "pending":
        stepper.step(1, 30, [30, 9])
        stepper.send(1, 32, [5, 5, 5])
    stepper.core.close(("router", 1))
    assert blocks_in_use(stepper) == 0
    assert not stepper.core.has_work
    stepper.open(make_spec(numbers(0, 30)))
    assert stepper.step(1, 30, numbers(30, 3)).token_ids == tuple(numbers(30, 4))


def test_a_drain_refuses_new_sessions_and_lets_the_others_finish() -> None:
    stepper = table_stepper(COUNTING, num_blocks=1)
    stepper.open(make_spec([3], max_output_tokens=2))
    stepper.open(make_spec([3], session_id=2, max_output_tokens=2))
    stepper.core.drain()
    stepper.open(make_spec([3], session_id=3))
    assert [type(stepper.settled[i]) for i in (2, 3)] == [Draining, Draining]
    assert stepper.step(1, 1, [4]).finish_reason is FinishReason.LENGTH

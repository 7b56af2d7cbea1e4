"""Blocks sent ahead and runs of plain tokens, stepped by hand: what is taken, what is forgotten, what is refused."""

import pytest
from verifier_parts import COUNTING, MS, Collector, Stepper, make_spec, numbers, table_stepper

from specmesh.runtime.types import EntryErrorReason, EntryFailure, FinishReason, Outcome, StepResult
from specmesh.verifier.entries import EntryLimits


def started(**options: object) -> Stepper:
    """A session of one token, 3, with the block (4, 5) in flight."""
    stepper = table_stepper(COUNTING, **options)
    stepper.open(make_spec([3]))
    stepper.send(1, 1, [4, 5])
    return stepper


def results(stepper: Stepper) -> list[StepResult]:
    assert all(isinstance(answer, StepResult) for answer in stepper.stream.answers), stepper.stream.answers
    return [answer for answer in stepper.stream.answers if isinstance(answer, StepResult)]


def texts(stepper: Stepper) -> list[tuple[int, ...]]:
    return [result.token_ids for result in results(stepper)]


# Conditional blocks.


def test_the_block_for_the_outcome_that_came_true_is_verified_in_the_next_tick() -> None:
    stepper = started()
    stepper.send(1, 4, [9, 9], after=Outcome(1, 2, 7))
    stepper.send(1, 4, [7, 8], after=Outcome(1, 2, 6))
    stepper.send(1, 3, [1], after=Outcome(1, 1, 6))
    stepper.tick()
    stepper.tick()
    assert texts(stepper) == [(4, 5, 6), (7, 8, 9)]
    assert results(stepper)[1].position == 4
    assert not stepper.core.has_work
    assert stepper.core.counters["conditional_taken"] == 1
    assert stepper.core.counters["conditional_dropped"] == 2


def test_without_a_block_for_the_outcome_the_session_waits_for_its_peer() -> None:
    stepper = started()
    stepper.send(1, 4, [7], after=Outcome(1, 2, 7))
    stepper.send(1, 2, [7], after=Outcome(1, 0, 4))
    stepper.tick()
    assert not stepper.core.has_work
    assert stepper.step(1, 4, [7]).token_ids == (7, 8)
    assert texts(stepper) == [(4, 5, 6), (7, 8)]


@pytest.mark.parametrize("late", [False, True])
def test_whether_a_block_comes_before_or_after_the_answer_changes_nothing(late: bool) -> None:
    """Taken by the outcome alone: what its peer did not know yet when it sent it is not known by the time either."""
    stepper = started()
    if late:
        stepper.tick()
    stepper.send(1, 4, [9], after=Outcome(1, 2, 9))
    stepper.send(1, 4, [7], after=Outcome(1, 2, 6))
    for _ in range(3):
        stepper.tick()
    assert texts(stepper) == [(4, 5, 6), (7, 8)]


def test_blocks_may_be_sent_ahead_of_a_block_that_was_itself_sent_ahead() -> None:
    stepper = started()
    stepper.send(1, 4, [7], after=Outcome(1, 2, 6))
    stepper.tick()
    stepper.send(1, 6, [9, 10], after=Outcome(4, 1, 8))
    stepper.tick()
    stepper.tick()
    assert texts(stepper) == [(4, 5, 6), (7, 8), (9, 10, 11)]


def test_a_block_that_waited_for_its_outcome_did_not_wait_for_a_tick() -> None:
    stepper = started()
    stepper.send(1, 4, [7], after=Outcome(1, 2, 6))
    stepper.clock.pass_ms(5)
    stepper.tick()
    stepper.clock.pass_ms(2)
    stepper.tick()
    assert [result.timing.queue_ns for result in results(stepper)] == [5 * MS, 2 * MS]


def test_what_is_sent_ahead_is_bounded() -> None:
    stepper = started(entry_limits=EntryLimits(max_conditional=2))
    for token in (1, 2, 6):
        stepper.send(1, 4, [7], after=Outcome(1, 2, token))
    assert stepper.failure().reason is EntryErrorReason.INVALID_VALUE
    assert "max_conditional: 2" in stepper.failure().message
    stepper.stream.answers.clear()
    stepper.tick()
    assert texts(stepper) == [(4, 5, 6)]
    assert not stepper.core.has_work


@pytest.mark.parametrize(
    ("position", "after", "reason", "said"),
    [
        (4, Outcome(1, 2, 6), EntryErrorReason.INVALID_VALUE, "there already"),
        (5, Outcome(1, 2, 9), EntryErrorReason.INVALID_VALUE, "would end at 4"),
        (5, Outcome(2, 2, 9), EntryErrorReason.CONTEXT_MISMATCH, "started at 2"),
        (1, Outcome(0, 0, 9), EntryErrorReason.CONTEXT_MISMATCH, "started at 0"),
    ],
)
def test_a_block_that_follows_nothing_is_refused(
    position: int, after: Outcome, reason: EntryErrorReason, said: str
) -> None:
    """A second block for one outcome among them: of two finished blocks none may be chosen."""
    stepper = started()
    stepper.send(1, 4, [7], after=Outcome(1, 2, 6))
    stepper.send(1, position, [8], after=after)
    assert (stepper.failure().reason, stepper.failure().position) == (reason, position)
    assert said in stepper.failure().message
    stepper.stream.answers.clear()
    stepper.tick()
    stepper.tick()
    assert texts(stepper) == [(4, 5, 6), (7, 8)]


def test_a_block_beside_one_that_was_taken_is_refused() -> None:
    stepper = started()
    stepper.send(1, 4, [7], after=Outcome(1, 2, 6))
    stepper.tick()
    stepper.send(1, 4, [8])
    assert stepper.failure().reason is EntryErrorReason.INVALID_VALUE
    stepper.send(1, 4, [8], after=Outcome(1, 2, 6))
    assert "has an entry already" in stepper.failure().message


def test_a_bad_block_sent_ahead_is_as_if_nothing_had_been_drafted() -> None:
    stepper = started()
    stepper.send(1, 4, [7], [b"not a row"], after=Outcome(1, 2, 6))
    stepper.tick()
    stepper.tick()
    last = results(stepper)[-1]
    assert (last.token_ids, last.num_drafted) == ((7,), 0)
    assert last.block_refusal is not None


@pytest.mark.parametrize("end", ["close", "stream", "deadline", "stop"])
def test_what_was_sent_ahead_ends_with_its_step(end: str) -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3], stop_token_ids=frozenset({6}) if end == "stop" else frozenset()))
    stepper.send(1, 1, [4, 5], deadline_ns=stepper.clock() + (MS if end == "deadline" else 1000 * MS))
    stepper.send(1, 4, [7], after=Outcome(1, 2, 6))
    if end == "close":
        stepper.core.close(("router", 1))
    elif end == "stream":
        stepper.core.lose_stream(stepper.stream)
    elif end == "deadline":
        stepper.clock.pass_ms(2)
    stepper.tick()
    assert not stepper.core.has_work
    if end in ("stream", "deadline"):
        again = Collector()
        stepper.send(1, 1, [4, 5], stream=again)
        stepper.tick()
        stepper.tick()
        assert [a.token_ids for a in again.answers if isinstance(a, StepResult)] == [(4, 5, 6)]
        assert stepper.core.counters["conditional_taken"] == 0
        stepper.core.close(("router", 1))
    assert stepper.backend.num_free_blocks == stepper.backend.num_blocks


# Runs.


def test_a_run_answers_every_token_without_being_asked() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3]))
    stepper.send(1, 1, run_count=5)
    for _ in range(7):
        stepper.tick()
    assert texts(stepper) == [(token,) for token in numbers(4, 5)]
    assert [(r.position, r.num_drafted) for r in results(stepper)] == [(1 + at, 0) for at in range(5)]
    assert stepper.core.counters["ticks"] == 5
    assert stepper.step(1, 6, [9]).token_ids == (9, 10)


@pytest.mark.parametrize("bound", ["stop", "length"])
def test_a_run_ends_with_its_text(bound: str) -> None:
    stepper = table_stepper(COUNTING)
    changes = {"stop_token_ids": frozenset({6})} if bound == "stop" else {"max_output_tokens": 3}
    stepper.open(make_spec([3], **changes))
    stepper.send(1, 1, run_count=50)
    for _ in range(5):
        stepper.tick()
    assert texts(stepper) == [(4,), (5,), (6,)]
    assert results(stepper)[-1].finish_reason is (FinishReason.STOP if bound == "stop" else FinishReason.LENGTH)
    assert stepper.backend.num_free_blocks == stepper.backend.num_blocks


def test_a_run_shares_its_ticks_with_the_others() -> None:
    stepper = table_stepper(COUNTING)
    for session_id in (1, 2):
        stepper.open(make_spec([3], session_id=session_id))
    stepper.send(1, 1, run_count=10)
    for at in range(10):
        stepper.send(2, 1 + at)
        stepper.tick()
    assert [result.batch_size for result in results(stepper)] == [2] * 20
    assert not stepper.core.has_work


def test_a_run_may_follow_an_outcome() -> None:
    stepper = started()
    stepper.send(1, 4, after=Outcome(1, 2, 6), run_count=2)
    for _ in range(4):
        stepper.tick()
    assert texts(stepper) == [(4, 5, 6), (7,), (8,)]


def test_a_run_ends_when_its_time_or_its_stream_does() -> None:
    stepper = table_stepper(COUNTING)
    for session_id in (1, 2):
        stepper.open(make_spec([3], session_id=session_id))
    lost = Collector()
    stepper.send(1, 1, run_count=50, deadline_ns=stepper.clock() + 3 * MS)
    stepper.send(2, 1, run_count=50, stream=lost)
    stepper.tick()
    stepper.core.lose_stream(lost)
    stepper.clock.pass_ms(2)
    stepper.tick()
    stepper.clock.pass_ms(2)
    stepper.tick()
    assert len(lost.answers) == 1
    *answered, failure = stepper.stream.answers
    assert [a.token_ids for a in answered if isinstance(a, StepResult)] == [(4,), (5,)]
    assert isinstance(failure, EntryFailure)
    assert (failure.position, failure.reason) == (3, EntryErrorReason.DEADLINE_EXCEEDED)
    assert not stepper.core.has_work


@pytest.mark.parametrize(("tokens", "count", "said"), [([4], 2, "has no block"), ([], 9, "max_run_tokens: 8")])
def test_a_run_with_a_block_or_over_its_bound_is_refused(tokens: list[int], count: int, said: str) -> None:
    stepper = table_stepper(COUNTING, entry_limits=EntryLimits(max_run_tokens=8))
    stepper.open(make_spec([3]))
    stepper.send(1, 1, tokens, run_count=count)
    assert stepper.failure().reason is EntryErrorReason.INVALID_VALUE
    assert said in stepper.failure().message
    assert stepper.step(1, 1).token_ids == (4,)


def test_nothing_is_sent_ahead_of_a_run() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3]))
    stepper.send(1, 1, run_count=3)
    stepper.send(1, 2, [5], after=Outcome(1, 0, 4))
    assert "a run takes no" in stepper.failure().message
    stepper.send(1, 1)
    assert stepper.failure().reason is EntryErrorReason.INVALID_VALUE

"""The engine's decisions, stepped by hand with a clock that is set by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from verifier_parts import (
    COUNTING,
    MS,
    FailingTarget,
    ManualClock,
    Stepper,
    make_spec,
    numbers,
    table_stepper,
)

from specmesh.model.spans import Span
from specmesh.runtime.types import EntryErrorReason, EntryFailure, FinishReason, Sampling, StepResult
from specmesh.verifier.batcher import TickLimits
from specmesh.verifier.session import Entry
from specmesh.verifier.target import TableTarget

# Steps.


def test_a_step_without_drafts_emits_one_token() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3, 4]))
    result = stepper.step(1, 2)
    assert (result.token_ids, result.num_accepted, result.num_drafted, result.reward) == ((5,), 0, 0, None)


def test_right_drafts_are_kept_up_to_the_first_wrong_one() -> None:
    """C15, C16: what follows a rejection starts from the verified context and not from the rejected draft."""
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3, 4]))
    result = stepper.step(1, 2, [5, 6, 9, 0])
    assert (result.token_ids, result.num_accepted, result.reward) == ((5, 6, 7), 2, 0.5)
    assert stepper.step(1, 5, [8, 9]).token_ids == (8, 9, 10)
    assert stepper.core.sessions["router", 1].cached == 7


def test_sessions_that_are_ready_share_one_forward() -> None:
    stepper = table_stepper(COUNTING)
    for session_id in range(8):
        stepper.open(make_spec([session_id], session_id=session_id))
    for session_id in range(8):
        stepper.send(session_id, 1, [session_id + 1] * (session_id % 3))
    stepper.tick()
    results = [answer for answer in stepper.stream.answers if isinstance(answer, StepResult)]
    assert [result.batch_size for result in results] == [8] * 8
    assert [result.token_ids[0] for result in results] == numbers(1, 8)


def test_a_finished_session_is_freed_at_once() -> None:
    """C9: nothing after the stop token is cached, because nothing of the session is."""
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3], stop_token_ids=frozenset({6})))
    result = stepper.step(1, 1, [4, 5, 6, 7])
    assert (result.token_ids, result.finish_reason, result.stop_token_id) == ((4, 5, 6), FinishReason.STOP, 6)
    assert (result.num_accepted, result.num_drafted) == (3, 3)
    assert stepper.backend.num_free_blocks == stepper.backend.num_blocks
    assert not stepper.core.sessions


@pytest.mark.parametrize("block_length", [0, 1, 3, 4, 8, 16])
def test_the_end_of_the_context_ends_the_text_and_nothing_is_written_beyond(block_length: int) -> None:
    """C21: prompt 60 of 64, block length 8: 4 tokens, no index error."""
    stepper = table_stepper(COUNTING, max_context_tokens=64, num_blocks=4)
    stepper.open(make_spec(numbers(0, 60)))
    emitted: list[int] = []
    while True:
        result = stepper.step(1, 60 + len(emitted), numbers(60 + len(emitted), block_length))
        emitted += result.token_ids
        if result.finish_reason is not None:
            break
    assert emitted == numbers(60, 4)
    assert result.finish_reason is FinishReason.LENGTH


def test_a_step_that_waited_for_a_prompt_says_so_as_queue_time() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec(numbers(0, 40)))
    stepper.send(1, 40)
    stepper.clock.pass_ms(7)
    stepper.tick()
    answer = stepper.stream.answers[-1]
    assert isinstance(answer, StepResult)
    assert answer.timing.queue_ns == answer.timing.total_ns == 7 * MS


def test_resuming_continues_the_text_and_counts_its_output() -> None:
    whole = table_stepper(COUNTING)
    whole.open(make_spec([3], max_output_tokens=5))
    resumed = table_stepper(COUNTING)
    resumed.open(make_spec([3, 4, 5, 6], prompt_length=1, max_output_tokens=5))
    assert whole.step(1, 1, [4, 5, 6]).token_ids == (4, 5, 6, 7)
    assert resumed.step(1, 4).token_ids == (7,)
    for stepper in (whole, resumed):
        last = stepper.step(1, 5)
        assert (last.token_ids, last.finish_reason) == ((8,), FinishReason.LENGTH)


def test_penalties_count_prompt_output_and_draft_prefix() -> None:
    """C12: frequency penalty .5 on logits [1.0, .9]: the second token must differ, drafted or not."""
    logits = np.zeros((4, 4, 4), np.float32)
    logits[..., 0], logits[..., 1], logits[..., 2:] = 1.0, 0.9, -9.0
    sampling = Sampling(temperature=0.0, frequency_penalty=0.5)
    drafted, plain = table_stepper(logits), table_stepper(logits)
    for stepper in (drafted, plain):
        stepper.open(make_spec([2], sampling=sampling))
    assert drafted.step(1, 1, [0, 0]).token_ids == (0, 1)
    assert plain.step(1, 1).token_ids + plain.step(1, 2).token_ids == (0, 1)


# Entries that are refused.


def test_a_wrong_position_is_answered_and_changes_nothing() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3, 4]))
    for position in (0, 1, 3):
        stepper.send(1, position, [5])
        assert stepper.failure().reason is EntryErrorReason.CONTEXT_MISMATCH
        assert stepper.failure().position == position
    assert stepper.step(1, 2, [5]).token_ids == (5, 6)


def test_a_second_outstanding_entry_is_refused_and_the_first_is_served() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3, 4]))
    stepper.send(1, 2, [5])
    stepper.send(1, 2, [9])
    assert stepper.failure().reason is EntryErrorReason.INVALID_VALUE
    assert "at most 1" in stepper.failure().message
    stepper.tick()
    answer = stepper.stream.answers[-1]
    assert isinstance(answer, StepResult)
    assert answer.token_ids == (5, 6)


def test_an_entry_whose_time_has_passed_is_answered_and_not_computed() -> None:
    target = FailingTarget()
    stepper = Stepper(target)
    stepper.open(make_spec([3]))
    stepper.send(1, 1, deadline_ns=stepper.clock() + 5 * MS)
    stepper.clock.pass_ms(5)
    stepper.tick()
    assert stepper.failure().reason is EntryErrorReason.DEADLINE_EXCEEDED
    assert target.batches == []
    assert stepper.step(1, 1).token_ids == (4,)


def test_an_entry_for_a_session_that_ended_or_was_replaced_meanwhile_is_answered() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec([3]))
    session = stepper.core.sessions["router", 1]
    stepper.core.close(("router", 1))
    for _ in range(2):
        stepper.core.submit(session, Entry(stepper.stream, 1, (), (), None, 0))
        stepper.flush()
        assert stepper.failure().reason is EntryErrorReason.UNKNOWN_SESSION
        stepper.open(make_spec([3]))


# Fairness.


def test_a_long_prompt_never_stops_the_others_between_its_chunks() -> None:
    stepper = table_stepper(COUNTING, max_context_tokens=4096, num_blocks=300, limits=TickLimits(64, 100))
    stepper.open(make_spec([0]))
    stepper.open(make_spec(numbers(0, 2050), session_id=2))
    stepper.send(2, 2050)
    position, ticks = 1, 0
    while not any(answer.session_id == 2 for answer in stepper.stream.answers):
        stepper.send(1, position)
        stepper.tick()
        ticks += 1
        mine = [a for a in stepper.stream.answers if a.session_id == 1 and isinstance(a, StepResult)]
        assert len(mine) == ticks
        position += 1
    assert ticks == 21


def test_a_short_prompt_waits_for_one_chunk_of_a_long_one() -> None:
    stepper = table_stepper(COUNTING, max_context_tokens=4096, num_blocks=300, limits=TickLimits(64, 100))
    stepper.open(make_spec(numbers(0, 2050), session_id=2))
    stepper.tick()
    stepper.open(make_spec(numbers(0, 80)))
    stepper.send(1, 80)
    stepper.tick()
    stepper.tick()
    (answer,) = stepper.stream.answers
    assert isinstance(answer, StepResult)
    assert (answer.session_id, answer.token_ids) == (1, (80 % 32,))


class SlowTarget(TableTarget):
    """Takes ten milliseconds of the clock that it is given."""

    clock: ManualClock

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        self.clock.pass_ms(10)
        return super().forward(spans)


@pytest.mark.parametrize("waits", [True, False])
def test_no_answer_waits_for_two_chunks_of_a_prompt(waits: bool) -> None:
    """Who came while a chunk was computed gets its tick without another; who came later does not hold the prompt up."""
    target = SlowTarget(COUNTING, max_context_tokens=4096)
    stepper = Stepper(target, num_blocks=300, limits=TickLimits(64, 100))
    target.clock = stepper.clock
    for session_id in (1, 2):
        stepper.open(make_spec([0], session_id=session_id))
    stepper.open(make_spec(numbers(0, 2050), session_id=3))
    fed = []
    for turn in range(10):
        session_id, cached = 1 + turn % 2, stepper.core.sessions["router", 3].cached
        stepper.send(session_id, 1 + turn // 2, arrived_ns=stepper.clock() - (5 * MS if waits and turn else 0))
        stepper.tick()
        assert stepper.stream.answers[-1].session_id == session_id
        fed.append(stepper.core.sessions["router", 3].cached - cached)
    assert fed == ([100, 0] * 5 if waits else [100] * 10)


def test_two_cohorts_become_one() -> None:
    """A session that came back while the tick of the others ran has not been away for as long as that tick."""
    target = SlowTarget(COUNTING, max_context_tokens=256)
    stepper = Stepper(target)
    target.clock = stepper.clock
    for session_id in (1, 2):
        stepper.open(make_spec([0], session_id=session_id))
    for step in range(5):
        for session_id in (1, 2):
            stepper.send(session_id, 1 + step, arrived_ns=stepper.clock() - (10 - session_id) * MS if step else 0)
            stepper.tick()
    stepper.send(1, 6, arrived_ns=stepper.clock() - 9 * MS)
    until_ns = stepper.core.gather_until_ns()
    assert until_ns is not None
    assert stepper.clock() + 1 * MS <= until_ns <= stepper.clock() + 2 * MS


# Failures of a tick.


def test_a_failed_tick_fails_its_sessions_and_no_others() -> None:
    target = FailingTarget()
    stepper = Stepper(target)
    for session_id in (1, 2, 3):
        stepper.open(make_spec([3], session_id=session_id))
    target.errors.append(ValueError("a fault"))
    stepper.send(1, 1)
    stepper.send(2, 1)
    stepper.tick()
    reasons = {a.session_id: a.reason for a in stepper.stream.answers if isinstance(a, EntryFailure)}
    assert reasons == {1: EntryErrorReason.INTERNAL, 2: EntryErrorReason.INTERNAL}
    assert set(stepper.core.sessions) == {("router", 3)}
    assert stepper.step(3, 1).token_ids == (4,)
    stepper.core.close(("router", 3))
    assert stepper.backend.num_free_blocks == stepper.backend.num_blocks


class SmallDevice(FailingTarget):
    """Has memory for so many tokens in one forward, and none at all where `hungry` is among them."""

    most, hungry = 100, -1

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        if any(self.hungry in span.token_ids for span in spans) or sum(len(s.token_ids) for s in spans) > self.most:
            raise torch.OutOfMemoryError("no memory")
        return super().forward(spans)


def test_a_tick_that_the_device_has_no_memory_for_is_computed_in_parts() -> None:
    target = SmallDevice()
    target.most = 10
    stepper = Stepper(target)
    for session_id in range(8):
        stepper.open(make_spec([3], session_id=session_id))
        stepper.send(session_id, 1, [4, 5, 6])
    stepper.tick()
    results = [answer for answer in stepper.stream.answers if isinstance(answer, StepResult)]
    assert [(result.token_ids, result.batch_size) for result in results] == [((4, 5, 6, 7), 2)] * 8
    assert target.batches == [2, 2, 2, 2]


def test_a_session_that_the_device_has_no_memory_for_is_refused_alone() -> None:
    target = SmallDevice()
    target.hungry = 9
    stepper = Stepper(target)
    for session_id, token in ((1, 3), (2, 9), (3, 3)):
        stepper.open(make_spec([token], session_id=session_id))
        stepper.send(session_id, 1)
    stepper.tick()
    answers = {answer.session_id: answer for answer in stepper.stream.answers}
    failure = answers[2]
    assert isinstance(failure, EntryFailure)
    assert failure.reason is EntryErrorReason.INTERNAL
    assert [answers[i].token_ids for i in (1, 3)] == [(4,), (4,)]
    assert set(stepper.core.sessions) == {("router", 1), ("router", 3)}
    assert stepper.step(1, 2).token_ids == (5,)


def test_logits_that_are_not_finite_end_that_session_only() -> None:
    """C6: one target row all NaN in a batch of three."""
    logits = COUNTING.copy()
    logits[:, 20] = np.nan
    stepper = table_stepper(logits)
    for session_id, token in ((1, 3), (2, 20), (3, 7)):
        stepper.open(make_spec([token], session_id=session_id))
        stepper.send(session_id, 1)
    stepper.tick()
    answers = {answer.session_id: answer for answer in stepper.stream.answers}
    failure = answers[2]
    assert isinstance(failure, EntryFailure)
    assert failure.reason is EntryErrorReason.NON_FINITE_LOGITS
    assert [answers[i].token_ids for i in (1, 3)] == [(4,), (8,)]
    assert ("router", 2) not in stepper.core.sessions
    assert stepper.core.counters["non_finite_logits"] == 1
    assert stepper.backend.num_free_blocks == stepper.backend.num_blocks - 2 * 3

"""Who holds memory, what is shared, and who gives way when there is too little, stepped by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from verifier_parts import COUNTING, MS, Stepper, make_spec, numbers, table_stepper

from specmesh.runtime.types import EntryErrorReason, EntryFailure, Outcome, StepResult
from specmesh.verifier.batcher import TickLimits
from specmesh.verifier.target import TableTarget


def run_to_the_end(stepper: Stepper, drafts: int = 0) -> dict[int, list[int]]:
    """All open sessions, step by step; their texts. Fails when nothing gets on."""
    texts: dict[int, list[int]] = {}
    for _ in range(2000):
        if not stepper.core.sessions:
            return texts
        for (_, session_id), session in list(stepper.core.sessions.items()):
            if session.entry is None:
                stepper.send(session_id, session.position, numbers(session.context[-1] + 1, drafts))
        stepper.stream.answers.clear()
        stepper.tick()
        for answer in stepper.stream.answers:
            assert isinstance(answer, StepResult), answer
            texts.setdefault(answer.session_id, []).extend(answer.token_ids)
    raise AssertionError("sessions are left that nobody serves")


# Preemption.


@pytest.mark.parametrize("drafts", [0, 5])
def test_texts_that_together_need_more_than_there_is_all_come_out_right(drafts: int) -> None:
    stepper = table_stepper(COUNTING, num_blocks=8)
    for session_id in range(4):
        stepper.open(make_spec(numbers(session_id, 10), session_id=session_id, max_output_tokens=60))
    texts = run_to_the_end(stepper, drafts)
    assert texts == {session_id: numbers(session_id + 10, 60) for session_id in range(4)}
    assert stepper.core.counters["preemptions"] > 0
    assert stepper.backend.num_free_blocks == 8


def test_who_came_last_gives_way_and_comes_back_before_who_comes_later() -> None:
    stepper = table_stepper(COUNTING, num_blocks=6)
    for session_id in (1, 2):
        stepper.open(make_spec(numbers(0, 8), session_id=session_id, max_output_tokens=80))
    stepper.send(1, 8, run_count=80)
    for _ in range(70):
        stepper.tick()
    assert stepper.core.counters["preemptions"] == 0  # what the other holds beyond its context goes first
    for _ in range(5):
        stepper.tick()
    stepper.open(make_spec(numbers(0, 60), session_id=3, max_output_tokens=4))
    assert stepper.core.counters["preemptions"] == 1
    assert [stepper.core.sessions["router", i].cached > 0 for i in (1, 2)] == [True, False]
    assert 3 not in stepper.settled
    stepper.send(2, 8)
    stepper.tick()
    assert not any(answer.session_id == 2 for answer in stepper.stream.answers)
    stepper.core.close(("router", 1))
    stepper.flush()
    assert stepper.core.sessions["router", 2].cached == 0
    stepper.tick()
    assert [a.token_ids for a in stepper.stream.answers if a.session_id == 2 and isinstance(a, StepResult)] == [(8,)]


def test_who_has_lost_its_memory_is_still_open_and_counts() -> None:
    stepper = table_stepper(COUNTING, num_blocks=6, max_sessions=2)
    for session_id in (1, 2):
        stepper.open(make_spec(numbers(0, 8), session_id=session_id, max_output_tokens=80))
    stepper.send(1, 8, run_count=80)
    while not stepper.core.waiting:
        stepper.tick()
    stepper.open(make_spec([1], session_id=3, priority=9, max_output_tokens=1))
    assert 3 not in stepper.settled
    stepper.core.close(("router", 2))
    stepper.flush()
    assert 3 not in stepper.settled  # there is a place now, but no memory
    stepper.core.close(("router", 1))
    stepper.flush()
    assert stepper.settled[3] is None


def test_a_higher_priority_never_gives_way_to_a_lower_one() -> None:
    stepper = table_stepper(COUNTING, num_blocks=6)
    stepper.open(make_spec(numbers(0, 8), session_id=1, max_output_tokens=80))
    stepper.open(make_spec(numbers(0, 8), session_id=2, max_output_tokens=80, priority=5))
    stepper.send(1, 8, run_count=80)
    for _ in range(75):
        stepper.tick()
    assert [stepper.core.sessions["router", i].cached for i in (1, 2)] == [0, 7]
    assert stepper.core.counters["preemptions"] == 1
    assert len(stepper.core.waiting) == 1
    assert stepper.step(2, 8).token_ids == (8,)
    stepper.core.close(("router", 2))
    while stepper.core.sessions:
        stepper.tick()
    text = [answer.token_ids[0] for answer in stepper.stream.answers if answer.session_id == 1]
    assert text == numbers(8, 80)


def test_a_prompt_that_loses_its_memory_half_way_is_fed_again() -> None:
    stepper = table_stepper(COUNTING, num_blocks=6, limits=TickLimits(64, 2))
    stepper.open(make_spec([0], session_id=1, max_output_tokens=80))
    stepper.open(make_spec(numbers(3, 40), session_id=2, max_output_tokens=8))
    stepper.send(1, 1, list(range(1, 17)))
    stepper.tick()
    for position in (18, 35):
        stepper.send(1, position, numbers(position, 16))
        stepper.tick()
    assert stepper.core.counters["preemptions"] == 1
    assert stepper.core.has_work is False
    stepper.core.close(("router", 1))
    assert stepper.step(2, 40, numbers(11, 3)).token_ids == tuple(numbers(11, 4))


@pytest.mark.parametrize("end", ["close", "lease", "deadline", "entry deadline"])
def test_a_session_without_memory_ends_like_any_other(end: str) -> None:
    stepper = table_stepper(COUNTING, num_blocks=6)
    stepper.open(make_spec(numbers(0, 8), session_id=1, max_output_tokens=80))
    deadline_ns = stepper.clock() + (50 * MS if end == "deadline" else 1 << 50)
    stepper.open(make_spec(numbers(0, 8), session_id=2, max_output_tokens=80, lease_ms=100), deadline_ns=deadline_ns)
    stepper.send(1, 8, run_count=80)
    while not stepper.core.waiting:
        stepper.tick()
    if end == "close":
        stepper.core.close(("router", 2))
    elif end == "entry deadline":
        stepper.send(2, 8, deadline_ns=stepper.clock() + MS)
        stepper.clock.pass_ms(2)
        stepper.tick()
        failures = [a for a in stepper.stream.answers if isinstance(a, EntryFailure)]
        assert [failure.reason for failure in failures] == [EntryErrorReason.DEADLINE_EXCEEDED]
        assert ("router", 2) in stepper.core.sessions
        return
    else:
        stepper.clock.pass_ms(100)
        stepper.core.sweep()
    assert set(stepper.core.sessions) == {("router", 1)}
    assert not stepper.core.waiting
    stepper.core.close(("router", 1))
    assert stepper.backend.num_free_blocks == 6


# Sharing.


def test_an_opening_says_how_much_of_its_context_is_there_already() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec(numbers(0, 40), session_id=1))
    assert stepper.step(1, 40).token_ids == (8,)
    for session_id, context in ((2, numbers(0, 40)), (3, numbers(0, 32)), (4, numbers(0, 20) + [5] * 20)):
        stepper.open(make_spec(context, session_id=session_id))
    assert stepper.found == {1: 0, 2: 32, 3: 31, 4: 16}
    assert stepper.step(2, 40).token_ids == (8,)
    assert stepper.step(3, 32).token_ids == (0,)
    assert stepper.step(4, 40).token_ids == (6,)
    assert stepper.step(1, 41, numbers(9, 3)).token_ids == tuple(numbers(9, 4))


def test_output_is_shared_as_well_and_after_its_session_has_ended() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec(numbers(0, 10), session_id=1, max_output_tokens=30))
    while stepper.core.sessions:
        position = stepper.core.sessions["router", 1].position
        stepper.step(1, position, numbers(position, 4))
    assert stepper.backend.num_free_blocks == stepper.backend.num_blocks
    stepper.open(make_spec(numbers(0, 45), session_id=2))
    assert stepper.found[2] == 32


def test_another_tenants_context_is_not_found() -> None:
    stepper = table_stepper(COUNTING)
    for session_id, salt in ((1, b"a"), (2, b"b"), (3, b"a")):
        stepper.open(make_spec(numbers(0, 40), session_id=session_id, cache_salt=salt))
        stepper.step(session_id, 40)
    assert stepper.found == {1: 0, 2: 0, 3: 32}


def test_what_was_not_finite_is_not_shared() -> None:
    """C6: another try computes anew; what was spoilt once must not stay for all who ask the same."""
    logits = COUNTING.copy()
    logits[:, 8] = np.nan
    stepper = table_stepper(logits)
    for session_id in (1, 2):
        stepper.open(make_spec(numbers(0, 41), session_id=session_id))
        stepper.tick()
        stepper.send(session_id, 41)
        stepper.tick()
        assert stepper.failure().reason is EntryErrorReason.NON_FINITE_LOGITS
    assert stepper.found == {1: 0, 2: 0}
    assert stepper.backend.num_free_blocks == stepper.backend.num_blocks


def test_a_block_is_shared_once_its_last_token_is_in_the_cache() -> None:
    stepper = table_stepper(COUNTING)
    stepper.open(make_spec(numbers(0, 32), session_id=1))
    stepper.tick()
    stepper.open(make_spec(numbers(0, 40), session_id=2))
    assert stepper.found[2] == 16
    assert stepper.step(2, 40).token_ids == (8,)


# How much fits.

TOKEN_BYTES = 2 * 32 * 8 * 128 * 2
"""Keys and values of one token, Llama-3-8B: 32 layers, 8 heads of 128, bfloat16."""


def filled(lengths: Sequence[int], num_blocks: int, *, last_tokens: int, max_output_tokens: int) -> Stepper:
    """Sessions that share nothing, each one token short of its length; the last `last_tokens` are output."""
    target = TableTarget(COUNTING, max_context_tokens=8192)
    stepper = Stepper(target, num_blocks=num_blocks, max_waiting=0, limits=TickLimits(4096, 1 << 20))
    for session_id, length in enumerate(lengths):
        prompt = numbers(0, length - last_tokens)
        salt = session_id.to_bytes(2, "little")
        stepper.open(make_spec(prompt, session_id=session_id, cache_salt=salt, max_output_tokens=max_output_tokens))
        stepper.send(session_id, len(prompt), run_count=last_tokens)
    for _ in range(last_tokens - 1):
        stepper.tick()
    assert set(stepper.settled.values()) == {None}
    assert stepper.core.counters["preemptions"] == 0
    return stepper


def test_128_sessions_of_2048_tokens_fit_32_gib_of_an_8b_cache() -> None:
    """To the last token; with weights of 16 GB that is 50 GB of a card."""
    num_blocks = 32 * 2**30 // (16 * TOKEN_BYTES)
    stepper = filled([2048] * 128, num_blocks, last_tokens=40, max_output_tokens=40)
    assert len(stepper.core.sessions) == 128
    assert {session.position for session in stepper.core.sessions.values()} == {2047}
    assert stepper.backend.num_free_blocks == 0
    stepper.tick()
    assert not stepper.core.sessions
    assert stepper.backend.num_free_blocks == num_blocks


def test_sessions_of_1024_to_4096_tokens_leave_less_than_4_percent_of_their_blocks_unused() -> None:
    """The room that they are admitted with and the last block's rest counted."""
    lengths = np.random.default_rng(0).integers(1024, 4097, 200).tolist()
    stepper = filled(lengths, 64_000, last_tokens=2, max_output_tokens=4000)
    held = 16 * (stepper.backend.num_blocks - stepper.backend.num_free_blocks)
    used = sum(session.cached for session in stepper.core.sessions.values())
    assert len(stepper.core.sessions) == 200
    assert 0.96 < used / held < 1


# Many sessions.


@dataclass
class World:
    """Sessions of one router that come, draft, send ahead, run, go idle and are cancelled, all at random."""

    stepper: Stepper
    random: np.random.Generator
    outputs: dict[int, list[int]] = field(default_factory=dict)
    prompts: dict[int, int] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    opened_at: dict[int, int] = field(default_factory=dict)
    longest_wait: int = 0

    def come(self, session_id: int, now: int) -> None:
        length = int(self.random.integers(1, 70))
        self.prompts[session_id], self.outputs[session_id], self.opened_at[session_id] = length, [], now
        salt = bytes([int(self.random.integers(0, 3))])
        self.stepper.open(
            make_spec(
                numbers(0, length), session_id=session_id, max_output_tokens=int(self.random.integers(1, 50)),
                cache_salt=salt,
            )
        )  # fmt: skip

    def act(self, session_id: int) -> None:
        """An idle session goes on, or is cancelled."""
        position = self.prompts[session_id] + len(self.outputs[session_id])
        if self.random.random() < 0.01:
            self.cancelled.add(session_id)
            self.stepper.core.close(("router", session_id))
        elif self.random.random() < 0.2:
            self.stepper.send(session_id, position, run_count=int(self.random.integers(1, 9)))
        else:
            kept, wrong = int(self.random.integers(0, 6)), int(self.random.integers(0, 3))
            self.stepper.send(session_id, position, numbers(position, kept) + [31 - position % 7] * wrong)
            if self.random.random() < 0.3:
                outcome = Outcome(position, kept, (position + kept) % 32)
                follows = position + kept + 1
                self.stepper.send(session_id, follows, numbers(follows, 3), after=outcome)

    def take(self, answers: Sequence[object], now: int) -> None:
        for answer in answers:
            assert isinstance(answer, StepResult), answer
            self.outputs[answer.session_id] += answer.token_ids
            if answer.finish_reason is not None:
                self.ended.append(answer.session_id)
                self.longest_wait = max(self.longest_wait, now - self.opened_at[answer.session_id])


def test_two_thousand_sessions_over_little_memory_all_come_to_their_end() -> None:
    """Nobody starves, nothing is stuck, nothing is left; every text is right whatever was shared or given up."""
    stepper = table_stepper(COUNTING, num_blocks=60, max_waiting=4000, limits=TickLimits(80, 64))
    world = World(stepper, np.random.default_rng(3))
    total, next_id, now = 2000, 0, 0
    while next_id < total or stepper.core.sessions or stepper.core.waiting:
        now += 1
        for _ in range(int(world.random.integers(0, 4))):
            if next_id < total:
                world.come(next_id, now)
                next_id += 1
        for (_, session_id), session in list(stepper.core.sessions.items()):
            if session.entry is None and world.random.random() < 0.8:
                world.act(session_id)
        stepper.stream.answers.clear()
        stepper.tick()
        world.take(stepper.stream.answers, now)
        assert now < 20_000, "sessions are left that nobody serves"
    assert len(world.ended) + len(world.cancelled) == total
    for session_id in world.ended:
        text = world.outputs[session_id]
        assert text == numbers(world.prompts[session_id], len(text))
    assert stepper.backend.num_free_blocks == 60
    assert stepper.core.counters["preemptions"] > 50
    assert stepper.core.counters["tokens_found_cached"] > 10_000
    out_of_order = [order - session_id for order, session_id in enumerate(world.ended)]
    assert max(out_of_order) < 120, "a session was overtaken by very many that came later"

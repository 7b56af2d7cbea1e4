"""Virtual replay: what an emitted text says of every draft and block length."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from specmesh.router.policies import Arm, ArmScores, expected_tokens
from specmesh.router.policies.replay import Evidence, Replay
from specmesh.router.policies.session_text import SessionText
from specmesh.runtime.types import Rule
from specmesh.training.replay import expected_steps, survival

ARM = Arm("a", "a" * 64)


def replayed(ratios: Sequence[float], *, by_block: bool) -> Evidence:
    replay, evidence = Replay(8, by_block=by_block), Evidence(8, fade=1.0)
    for ratio in ratios:
        evidence.add([replay.feed(ratio)])
    return evidence


def two_state_bits(number: int, seed: int) -> list[float]:
    """Guess bits: right with .95 in one state and .40 in the other, which persist with .95."""
    source, state, bits = random.Random(seed), 0, []
    for _ in range(number):
        bits.append(float(source.random() < (0.95, 0.40)[state]))
        state ^= source.random() < 0.05
    return bits


def tokens_per_step_of_two_states(length: int) -> float:
    """By enumeration of the chain of (state where a step starts): kept m drafts, then one more token."""
    right, stay = (0.95, 0.40), np.array([[0.95, 0.05], [0.05, 0.95]])
    move, tokens = np.zeros((2, 2)), np.zeros(2)
    for start in range(2):
        alive = np.eye(2)[start]  # by state, the chance that all drafts so far were kept
        for kept in range(length + 1):
            lost = alive * (1 if kept == length else 1 - np.array(right))
            tokens[start] += lost.sum() * (kept + 1)
            move[start] += lost @ stay
            alive = (alive * right) @ stay
    values, vectors = np.linalg.eig(move.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    return float(stationary / stationary.sum() @ tokens)


def test_correlated_acceptance_is_measured_as_enumeration_has_it() -> None:
    """C43: 2.441 tokens per step at length 4; the geometric formula says 2.646."""
    assert tokens_per_step_of_two_states(4) == pytest.approx(2.441, abs=5e-4)
    bits = two_state_bits(200_000, seed=1)
    evidence = replayed(bits, by_block=False)
    for length in (1, 2, 4, 8):
        measured = evidence.tokens / evidence.steps[length - 1]
        assert measured == pytest.approx(tokens_per_step_of_two_states(length), rel=0.01)
    assert expected_tokens(sum(bits) / len(bits), 4) == pytest.approx(2.646, abs=0.02)


def test_independent_acceptance_gives_what_the_formula_says() -> None:
    """C30: acceptance .8, length 4: 3.3616."""
    source = random.Random(2)
    evidence = replayed([float(source.random() < 0.8) for _ in range(200_000)], by_block=False)
    for length in range(1, 9):
        assert evidence.tokens / evidence.steps[length - 1] == pytest.approx(expected_tokens(0.8, length), rel=0.01)


@pytest.mark.parametrize("rule", ["TOKEN", "BLOCK"])
def test_the_walk_along_a_stream_equals_the_one_over_a_whole_text(rule: str) -> None:
    """Ratios above and below 1, some 0."""
    source = random.Random(3)
    ratios = [source.choice([0.0, 0.2, 0.9, 1.0, 1.7, 5.0]) for _ in range(400)]
    evidence = replayed(ratios, by_block=rule == "BLOCK")
    assert evidence.tokens == len(ratios)
    for length in range(1, 9):
        kept = survival(np.array(ratios), 8, rule)
        assert evidence.steps[length - 1] == pytest.approx(expected_steps(kept, length))


def test_a_draft_equal_to_the_target_keeps_whole_blocks() -> None:
    evidence = replayed([1.0] * 900, by_block=True)
    for length in range(1, 9):
        assert evidence.tokens / evidence.steps[length - 1] == pytest.approx(length + 1, rel=0.02)


def text_of(rule: Rule, *, greedy: bool = False) -> SessionText:
    return SessionText(2, rule=rule, greedy=greedy)


def steps_of(text: SessionText) -> tuple[float, list[float]]:
    evidence = text.evidence(ARM)
    assert evidence is not None
    return evidence.tokens, evidence.steps


def test_scores_are_set_against_the_target_at_their_positions() -> None:
    """TOKEN, length 1: T .5 .25 .5 and D .25 .5 0: acceptances .5, 1, 0 decide where steps start."""
    text = text_of(Rule.TOKEN)
    text.emit(10, 1, [math.log(0.5)])
    text.emit(11, 2, [math.log(0.25), math.log(0.5)])
    text.score(ARM, ArmScores(8, (0.0, 0.0, math.log(0.25))))  # two of the prompt: nothing to be set against
    text.score(ARM, ArmScores(11, (math.log(0.5), -math.inf)))
    tokens, steps = steps_of(text)
    starts = [1.0, 0.5, 0.5]  # at 10; at 11 when that failed; at 12 unless a step at 11 kept its draft
    fade = [0.985**2, 1.0, 1.0]
    assert tokens == pytest.approx(sum(fade))
    assert steps[0] == pytest.approx(sum(start * weight for start, weight in zip(starts, fade, strict=True)))


def test_what_is_scored_twice_counts_once_and_a_gap_starts_a_new_walk() -> None:
    text = text_of(Rule.COUPLED)
    text.emit(10, 9, [])
    bits = ArmScores(10, (0.0,) * 4, (True, False, False, True))
    assert len(text.score(ARM, bits)) == 4
    assert text.score(ARM, bits) == []
    assert text.score(ARM, ArmScores(16, (0.0,), (False,))) == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("rule", "greedy", "scores"),
    [
        (Rule.BLOCK, False, ArmScores(10, (math.nan,))),
        (Rule.COUPLED, False, ArmScores(10, (0.0,))),
        (Rule.BLOCK, False, ArmScores(11, (-1.0,))),
        (Rule.BLOCK, False, ArmScores(99, (-1.0,))),
    ],
)
def test_scores_that_say_nothing_teach_nothing(rule: Rule, greedy: bool, scores: ArmScores) -> None:
    """Not a number; no bits under COUPLED; of a token that the target said nothing of, or that is not there."""
    text = text_of(rule, greedy=greedy)
    text.emit(10, 1, [-0.5])
    text.emit(11, 1, [])
    assert text.score(ARM, scores) == []


def test_a_probability_above_one_counts_as_one() -> None:
    text = text_of(Rule.BLOCK, greedy=True)
    text.emit(10, 4, [])
    assert [one for one, _ in text.score(ARM, ArmScores(10, (7.0, 7.0, 7.0, -math.inf)))] == [1.0, 0.0, 1.0, 0.0]

"""Tokens per step from one text: against walking it step by step, and in cases that can be worked out by hand."""

import numpy as np
import pytest

from specmesh.training.replay import survival, tokens_per_step


def walked(equal: list[bool], block_length: int) -> float:
    """Steps of a greedy block, one after the other."""
    position, steps = 0, 0
    while position < len(equal):
        accepted = 0
        while accepted < block_length and position + accepted < len(equal) and equal[position + accepted]:
            accepted += 1
        position, steps = position + accepted + 1, steps + 1
    return len(equal) / steps


def test_a_perfect_draft_gives_one_more_token_than_the_block() -> None:
    assert tokens_per_step([survival(np.ones(60), 8, "TOKEN")], 4) == pytest.approx(5.0)


def test_a_hopeless_draft_gives_one_token_a_step() -> None:
    assert tokens_per_step([survival(np.zeros(60), 8, "BLOCK")], 8) == pytest.approx(1.0)


@pytest.mark.parametrize("block_length", [1, 2, 5, 8])
def test_greedy_replay_equals_the_walk(block_length: int) -> None:
    equal = np.random.default_rng(1).random(200) < 0.7
    kept = survival(equal.astype(float), 8, "BLOCK")
    assert tokens_per_step([kept], block_length) == pytest.approx(walked(equal.tolist(), block_length))


def test_block_survival_may_recover_what_token_loses() -> None:
    """r = 1/2 then 2: TOKEN keeps both with chance 1/2, and so does BLOCK; r = 2 then 1/2: TOKEN 1/2, BLOCK 1."""
    np.testing.assert_allclose(survival(np.array([0.5, 2.0]), 2, "TOKEN")[0], [1, 0.5, 0.5])
    np.testing.assert_allclose(survival(np.array([0.5, 2.0]), 2, "BLOCK")[0], [1, 0.5, 0.5])
    np.testing.assert_allclose(survival(np.array([2.0, 0.5]), 2, "TOKEN")[0], [1, 1, 0.5])
    np.testing.assert_allclose(survival(np.array([2.0, 0.5]), 2, "BLOCK")[0], [1, 1, 1])


def test_an_independent_acceptance_gives_the_geometric_sum() -> None:
    rate, length = 0.6, 3
    expected = sum(rate**k for k in range(length + 1))
    assert tokens_per_step([survival(np.full(20_000, rate), 8, "TOKEN")], length) == pytest.approx(expected, rel=1e-3)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="no such rule: GUESS"):
        survival(np.ones(3), 2, "GUESS")

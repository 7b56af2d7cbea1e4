"""What scores cost: learned from the steps they slow, granted from a share of the time."""

import pytest
from policy_worlds import A, B, C

from specmesh.router.policies import Arm
from specmesh.router.policies.score_costs import MAX_ARMS, ScoreCosts

STEP = 0.030
COSTS = {A: 0.012, B: 0.004, C: 0.0}


def learned(steps: int) -> ScoreCosts:
    """Asked in turns, alone and together, each beside a step of 30 ms."""
    costs = ScoreCosts(share=0.005)
    together = [(A,), (B, C), (A, B), (C,), (A, B, C)]
    for step in range(steps):
        arms = together[step % len(together)]
        costs.ask(arms)
        costs.add(arms, STEP + sum(COSTS[arm] for arm in arms), STEP)
    return costs


def test_each_arm_is_charged_its_own_even_where_they_are_asked_together() -> None:
    costs = learned(200)
    for arm, seconds in COSTS.items():
        assert costs.seconds(arm) == pytest.approx(seconds, abs=0.001)


def test_an_arm_that_nothing_is_known_of_may_be_asked() -> None:
    assert ScoreCosts(share=0.0).affordable(A)


def test_a_dear_arm_waits_until_its_share_of_the_time_pays_for_it_and_a_free_one_never_waits() -> None:
    costs = learned(2_000)
    waited = {A: 0, B: 0, C: 0}
    for _ in range(1_000):
        for arm in waited:
            waited[arm] += not costs.affordable(arm)
            if costs.affordable(arm):
                costs.ask((arm,))
        costs.save(STEP)
    # 12 ms out of 0.15 ms a step: every eightieth step, after what was saved before is spent.
    assert 1_000 - waited[A] == pytest.approx(1_000 * 0.005 * STEP / costs.seconds(A), abs=3)
    assert waited[A] > waited[B] > waited[C]
    assert waited[C] <= 1


def test_a_pause_of_the_machine_is_not_taken_for_a_cost() -> None:
    costs = learned(200)
    costs.ask((C,))
    costs.add((C,), 60.0, STEP)
    assert costs.seconds(C) < 0.006


def test_a_step_that_is_quicker_than_usual_makes_no_credit() -> None:
    costs = ScoreCosts(share=0.005)
    costs.ask((A,))
    costs.add((A,), STEP / 2, STEP)
    assert costs.seconds(A) == 0.0
    assert costs.affordable(A)


def test_costs_are_bounded_however_many_digests_pass_by() -> None:
    costs = ScoreCosts(share=0.005)
    for number in range(2 * MAX_ARMS):
        costs.ask((Arm("pool", f"{number:064d}"),))
    assert len(costs._costs) <= MAX_ARMS


def test_nothing_is_too_dear_for_ever() -> None:
    """One outlier, or a cost that is over, must not lock an arm out."""
    costs = ScoreCosts(share=0.005)
    costs.ask((A,))
    costs.add((A,), 2.0, 0.5)
    asked = 0
    for _ in range(3_000):
        if costs.affordable(A):
            costs.ask((A,))
            costs.add((A,), 0.5, 0.5)
            asked += 1
        costs.save(0.5)
    assert asked > 20
    assert costs.seconds(A) < 0.1


def test_an_arm_in_use_is_not_the_first_to_be_forgotten() -> None:
    costs = ScoreCosts(share=0.005)
    costs.ask((A,))
    costs.add((A,), STEP + 0.012, STEP)
    for number in range(MAX_ARMS + 10):
        costs.ask((Arm("pool", f"{number:064d}"),))
        costs.ask((A,))
    assert costs.seconds(A) > 0.0

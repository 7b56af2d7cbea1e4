"""The demand for pools: steps that would choose them if they were not busy, also while they have no replica."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from policy_worlds import A, B, C, World

from specmesh.router.arms import ArmFacts, ArmStats, DraftScope
from specmesh.router.block import DraftWork
from specmesh.router.committed import CommittedStep
from specmesh.router.demand import Demand
from specmesh.router.drafts import Drafted
from specmesh.router.policies import POLICIES, ArmView, Choice, Policy, PolicySettings, StepView, make_policy
from specmesh.router.policies.demand import KnowsDemand, UnloadedTimes, arms_in_demand
from specmesh.router.policies.interface import PLAIN, Arm
from specmesh.router.policies.planner import Option
from specmesh.router.timing import StepNanoseconds
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.instruments import Point, Registry
from specmesh.runtime.types import Block, Rule, StepResult

MS = 1_000_000
GOOD, BAD = [1.8, 2.5, 3.0, 3.4], [1.02, 1.03, 1.03, 1.03]
"""Tokens of a step by block length."""
REST = 0.030, 0.001
"""A step takes 30 ms, and 1 ms for each token that is verified."""
OFF = {None: Option(PLAIN, 1.0, 0.030)}


def option(arm: Arm, tokens: Sequence[float], seconds: float) -> Option:
    return Option(Choice(arm, len(tokens)), tokens[-1], seconds)


def test_an_overloaded_arm_is_in_demand_though_it_is_not_chosen() -> None:
    busy = OFF | {A: option(A, GOOD, 0.400), B: option(B, BAD, 0.040)}
    assert max(busy.values(), key=lambda each: each.goodput).choice is PLAIN
    assert arms_in_demand(busy, {A: GOOD, B: BAD}, REST, {A: 0.002, B: 0.002}) == {A}


def test_an_arm_without_replicas_is_in_demand_if_its_past_was_good() -> None:
    assert arms_in_demand(OFF, {A: GOOD, B: BAD}, REST, {A: 0.002, B: 0.002}) == {A}
    slow = {A: 0.100}
    assert arms_in_demand(OFF, {A: GOOD}, REST, slow) == frozenset(), "slow also when nothing waits"


def test_each_arm_is_weighed_against_the_others_as_they_are() -> None:
    """A is there and quick; B would be a little quicker, C a little slower, if they were not busy."""
    present = OFF | {A: option(A, GOOD, 0.044)}
    tokens = {A: GOOD, B: GOOD, C: GOOD}
    assert arms_in_demand(present, tokens, REST, {A: 0.0025, B: 0.0015, C: 0.0035}) == {A, B}


def test_what_is_chosen_as_it_is_now_is_in_demand_whatever_is_known_of_its_best() -> None:
    present = OFF | {A: option(A, GOOD, 0.044)}
    assert arms_in_demand(present, {A: GOOD}, REST, {A: 9.0}) == {A}
    assert arms_in_demand(present, {A: GOOD}, REST, {}) == {A}


def test_an_unloaded_time_is_near_the_quickest_block_and_follows_a_change() -> None:
    times = UnloadedTimes()
    for _ in range(300):
        times.add([(A, 400 * MS, 4), (A, 8 * MS, 4)])  # busy, and not
    assert times.seconds[A] == pytest.approx(0.002, rel=0.3)
    times.add([(A, 0, 4)])  # says nothing of its time
    times.add([(A, 4 * MS, 0), (None, 4 * MS, 4)])
    assert times.seconds[A] == pytest.approx(0.002, rel=0.3)
    times.add([(A, 40 * MS, 4)] * 5000)  # another machine
    assert times.seconds[A] == pytest.approx(0.010, rel=0.1)


# The policies.


def view_of(*arms: Arm, position: int = 10, session: int = 0) -> StepView:
    return StepView(session, position, 8, tuple(ArmView(arm, 8) for arm in arms), rule=Rule.COUPLED)


class Busy:
    """A's blocks take a millisecond a token until it becomes overloaded."""

    seconds = 0.001

    def __call__(self, choice: Choice, num_sessions: int) -> tuple[float, float]:
        return (self.seconds if choice.arm == A else 0.001) * choice.block_length, 0.030 + 0.0005 * choice.block_length


def test_goodput_still_wants_an_arm_that_is_overloaded_or_gone_and_no_bad_one() -> None:
    policy = make_policy("goodput", seed=0, settings=PolicySettings())
    assert isinstance(policy, KnowsDemand)
    times = Busy()
    world = World({A: lambda step: 0.8, B: lambda step: 0.02}, times)
    world.play(policy, 200)
    assert sum(choice.arm == A for choice in world.choices[-50:]) > 40
    unloaded = {A: 0.001, B: 0.001}
    view = replace(view_of(A, B), session_id=world.session)
    assert set(policy.in_demand(view, [], unloaded)) == {A}
    times.seconds = 0.5
    world.play(policy, 300)
    assert sum(choice.arm == A for choice in world.choices[-50:]) < 5, "it is not chosen"
    assert set(policy.in_demand(view, [], unloaded)) == {A}, "and yet it would be"
    gone = view_of(session=world.session)
    assert set(policy.in_demand(gone, [ArmView(A, 8), ArmView(B, 8)], unloaded)) == {A}
    assert set(policy.in_demand(gone, [ArmView(C, 8)], unloaded)) == {C}, "nobody knows how it would do"


def test_asking_for_the_demand_changes_no_choice() -> None:
    def choices(*, asked: bool) -> list[Choice]:
        policy = make_policy("goodput", seed=0, settings=PolicySettings())
        assert isinstance(policy, KnowsDemand)
        world = World({A: lambda step: 0.6, B: lambda step: 0.5}, Busy())
        for _ in range(300):
            world.play(policy, 1)
            if asked:
                policy.in_demand(view_of(A, B, session=world.session), [ArmView(C, 8)], {A: 0.001})
        return world.choices

    assert choices(asked=True) == choices(asked=False)


def test_fixed_wants_its_arm_whether_it_is_there_or_not() -> None:
    policy = make_policy("fixed", seed=0, settings=PolicySettings(fixed_arm="a"))
    assert isinstance(policy, KnowsDemand)
    assert list(policy.in_demand(view_of(A, B), [], {})) == [A]
    assert list(policy.in_demand(view_of(B), [ArmView(A, 8), ArmView(C, 8)], {})) == [A]
    assert list(policy.in_demand(view_of(B), [ArmView(C, 8)], {})) == []


# The counter.

SPENT = StepNanoseconds(10_000_000, 1_000_000, 2_000_000, 500_000, 4_000_000, 1_500_000, 1_000_000)


class Steps:
    """Steps of sessions that may use the pools a, b and c, of a router whose arms are set by the test."""

    def __init__(
        self, policy: str = "ucb1", pools: str = "abc", share: float = 1.0, lot: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.registry = Registry()
        self.arms: dict[Arm, Any] = {}
        self.policy: Policy = POLICIES[policy](seed=0, settings=PolicySettings())
        self.demand = Demand(self.registry.counter(names.ARM_DEMAND), self.policy, self.arms, share=share, lot=lot)
        self.scope = DraftScope(frozenset(pools))

    def have(self, arm: Arm, *, ready: bool, trusted: bool = True, quarantined: str = "", context: int = 100) -> None:
        facts = ArmFacts(arm, trusted, sends_rows=True)
        self.arms[arm] = SimpleNamespace(
            facts=facts, ready=ready, quarantined=quarantined, stats=ArmStats(),
            max_block_length=8, max_context_tokens=context,
        )  # fmt: skip

    def take(self, arm: Arm | None = None, *, held_out: bool = False, most: int = 8, position: int = 10) -> set[str]:
        """A step that chose `arm`; pools whose demand it has raised."""
        ready = tuple(ArmView(each, 8) for each, record in self.arms.items() if record.ready)
        session: Any = SimpleNamespace(plan=SimpleNamespace(scope=self.scope), held_out=held_out)
        choice = Choice(arm, 4) if arm else PLAIN
        work = DraftWork(0, 4_000_000)
        drafted = Drafted(Block(position, (1, 2, 3, 4)), arm=arm, work=work)
        result = StepResult(1, position, (5,), 0, 4)
        before = self.values()
        view = StepView(1, position, most, ready)
        self.demand.count(CommittedStep(session, view, choice, drafted, result, None, SPENT))
        return {pool for pool, value in self.values().items() if value > before.get(pool, 0)}

    def values(self) -> dict[str, float]:
        [family] = [each for each in self.registry.collect() if each.metric is names.ARM_DEMAND]
        return {point.values[0]: point.value for point in family.points if isinstance(point, Point)}


def test_a_pool_that_was_never_seen_is_in_demand_while_there_are_steps_for_it() -> None:
    steps = Steps()
    steps.have(A, ready=True)
    assert steps.take(A) == {"a", "b", "c"}
    assert Steps(pools="").take() == set()
    assert steps.values() == {"a": 1, "b": 1, "c": 1}


def test_a_pool_is_remembered_when_its_last_replica_has_gone() -> None:
    steps = Steps("goodput", pools="a")
    steps.have(A, ready=True)
    view = view_of(A)
    assert steps.policy.choose(replace(view, session_id=1)).arm == A
    assert steps.take(A) == {"a"}
    steps.arms.pop(A).ready = False
    steps.have(B, ready=False)
    assert steps.take() == {"a"}
    steps.have(A, ready=False, trusted=False)
    steps.scope = DraftScope(frozenset("a"), needs_trust=True)
    assert steps.take() == set()
    steps.arms.pop(A)
    assert steps.take() == set(), "it goes by what is known of it"


def test_who_may_not_serve_is_in_no_demand() -> None:
    """Replicas more would change nothing for these."""
    steps = Steps(pools="a")
    steps.have(A, ready=False, quarantined="lies")
    assert steps.take() == set()
    steps.have(A, ready=False)
    assert steps.take() == {"a"}
    assert steps.take(held_out=True) == set()
    assert steps.take(most=0) == set()
    steps.have(A, ready=False, context=10)
    assert steps.take(position=10) == set()
    steps.have(A, ready=False, trusted=False)
    steps.scope = DraftScope(frozenset("a"), needs_trust=True)
    assert steps.take() == set()


def test_a_ready_arm_that_a_session_has_left_is_in_no_demand() -> None:
    steps = Steps(pools="a")
    steps.have(A, ready=True)
    session: Any = SimpleNamespace(plan=SimpleNamespace(scope=steps.scope), held_out=False)
    view = StepView(1, 10, 8, ())
    result = StepResult(1, 10, (5,), 0, 0)
    steps.demand.count(CommittedStep(session, view, PLAIN, Drafted(Block(10)), result, None, SPENT))
    assert steps.values() == {}


def test_a_bandit_counts_what_it_chose_and_what_is_not_there() -> None:
    steps = Steps("ucb1", pools="ab")
    steps.have(A, ready=True)
    steps.have(B, ready=False)
    assert steps.take(A) == {"a", "b"}
    assert steps.take() == {"b"}


def test_the_steps_that_are_looked_at_stand_for_all() -> None:
    steps = Steps("fixed", pools="a", share=1 / 16, lot=random.Random(3).random)
    steps.have(A, ready=True)
    for _ in range(4000):
        steps.take(A)
    assert steps.values()["a"] % 16 == 0
    assert steps.values()["a"] == pytest.approx(4000, rel=0.2)

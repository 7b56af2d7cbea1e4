"""What a router counts of its steps and requests, by the words of the table of names."""

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from specmesh.router.block import NO_WORK, DraftWork
from specmesh.router.committed import CommittedStep
from specmesh.router.demand import Demand
from specmesh.router.drafts import Drafted
from specmesh.router.metrics import MAX_POSITIONS, TIMED, RequestMetrics, StepMetrics
from specmesh.router.policies.fixed import FixedPolicy
from specmesh.router.policies.interface import PLAIN, Arm, ArmView, Choice, StepView
from specmesh.router.policies.settings import PolicySettings
from specmesh.router.session import Usage
from specmesh.router.timing import PARTS, StepNanoseconds
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.instruments import AT_A_TIME, HistogramPoint, Registry
from specmesh.runtime.types import Block, BlockRefusal, FallbackReason, StepResult

CODE, PROSE, CODE_2 = Arm("code", "a" * 64), Arm("prose", "b" * 64), Arm("code", "c" * 64)
SPENT = StepNanoseconds(10_000_000, 1_000_000, 2_000_000, 500_000, 4_000_000, 1_500_000, 1_000_000)


class Steps:
    """Steps of sessions that may use these pools, and the values that they make."""

    def __init__(self, *pools: str, lot: Callable[[], float] | None = None) -> None:
        self.registry = Registry()
        policy = FixedPolicy(seed=0, settings=PolicySettings())
        self.demand = Demand(self.registry.counter(names.ARM_DEMAND), policy, {}, share=1.0)
        self.metrics = StepMetrics(self.registry, self.demand, lot=lot or random.Random(5).random)
        plan = SimpleNamespace(scope=SimpleNamespace(pools=frozenset(pools)))
        self.session: Any = SimpleNamespace(plan=plan, held_out=False, leaves_drafts_to_policy=True)

    def take(
        self,
        arm: Arm | None,
        *,
        ready: Sequence[Arm] = (),
        drafted: int = 0,
        accepted: int = 0,
        fallback: FallbackReason | None = None,
        refusal: BlockRefusal | None = None,
        work: DraftWork = NO_WORK,
    ) -> None:
        result = StepResult(1, 5, tuple(range(accepted + 1)), accepted, drafted, block_refusal=refusal)
        view = StepView(1, 5, 8, tuple(ArmView(each, 8) for each in ready))
        choice = Choice(arm, 4) if arm else PLAIN
        step = CommittedStep(
            self.session,
            view,
            choice,
            Drafted(Block(5, tuple(range(drafted))), arm=arm, work=work),
            result,
            fallback,
            SPENT,
        )
        self.metrics.done(step, None)

    def values(self, metric: names.Metric) -> dict[tuple[str, ...], float]:
        [family] = [family for family in self.registry.collect() if family.metric is metric]
        return {point.values: point.value for point in family.points if not isinstance(point, HistogramPoint)}


def test_tokens_count_by_arm_and_by_place_in_the_block() -> None:
    steps = Steps("code")
    steps.take(CODE, ready=[CODE], drafted=4, accepted=2)
    steps.take(CODE, ready=[CODE], drafted=2, accepted=2)
    steps.take(None, ready=[CODE], fallback=FallbackReason.POLICY)
    assert steps.values(names.STEPS) == {("", ""): 1, ("code", CODE.name): 2}
    assert steps.values(names.EMITTED) == {("", ""): 1, ("code", CODE.name): 6}
    drafted, accepted = steps.values(names.DRAFTED), steps.values(names.ACCEPTED)
    assert [drafted["code", str(place)] for place in range(1, 6)] == [2, 2, 1, 1, 0]
    assert [accepted["code", str(place)] for place in range(1, 6)] == [2, 2, 0, 0, 0]
    assert steps.values(names.FALLBACKS)[("policy",)] == 1


def test_places_beyond_the_last_count_there() -> None:
    steps = Steps("code")
    steps.take(CODE, ready=[CODE], drafted=MAX_POSITIONS + 4, accepted=MAX_POSITIONS + 1)
    drafted, accepted = steps.values(names.DRAFTED), steps.values(names.ACCEPTED)
    assert sum(drafted.values()) == MAX_POSITIONS + 4
    assert sum(accepted.values()) == MAX_POSITIONS + 1


def test_parts_of_a_step_add_up_in_the_metrics_too() -> None:
    steps = Steps("code")
    steps.take(CODE, ready=[CODE])
    [family] = [family for family in steps.registry.collect() if family.metric is names.STEP_DURATION]
    sums = {point.values[0]: point.sum for point in family.points if isinstance(point, HistogramPoint)}
    assert abs(sum(sums[part] for part in PARTS) - sums["total"]) < 1e-12
    assert sums == SPENT.parts() | {"total": 0.01}


def test_refusals_of_every_kind_have_a_zero_before_they_have_a_one() -> None:
    steps = Steps("code")
    steps.take(CODE, ready=[CODE])
    before = steps.values(names.REFUSALS)
    assert before == {("code", reason.value): 0 for reason in BlockRefusal}
    steps.take(CODE, ready=[CODE], refusal=BlockRefusal.RESAMPLE_MISMATCH)
    assert steps.values(names.REFUSALS) == before | {("code", "resample_mismatch"): 1}


def test_blocks_teach_how_quick_their_arm_is_when_it_is_not_busy() -> None:
    """One in a few does, here the first; of one that was there before it was asked for nothing is known."""
    steps = Steps("code", lot=lambda: 0.0)
    steps.take(CODE, ready=[CODE], drafted=4, work=DraftWork(queue_ns=9_000_000, compute_ns=4_000_000))
    for _ in range(TIMED - 1):
        steps.take(CODE, ready=[CODE], drafted=4, work=DraftWork(compute_ns=8_000_000))
    steps.take(CODE, ready=[CODE], drafted=4, work=DraftWork(compute_ns=1, predicted=True))
    steps.registry.collect()
    assert steps.demand.unloaded.seconds == {CODE: pytest.approx(0.001)}


@pytest.mark.parametrize("num_sessions", [2, 4, 8, 16])
def test_sessions_that_take_turns_teach_how_quick_all_of_their_arms_are(num_sessions: int) -> None:
    """Also when one of them alone has an arm, and every so-many-th block would never be its."""
    steps = Steps("code", "prose")
    for turn in range(64 * AT_A_TIME):
        arm = PROSE if turn % num_sessions == num_sessions - 1 else CODE
        steps.take(arm, ready=[CODE, PROSE], drafted=4, work=DraftWork(compute_ns=4_000_000))
    steps.registry.work_off()
    assert steps.demand.unloaded.seconds == {CODE: pytest.approx(0.001), PROSE: pytest.approx(0.001)}


def test_a_step_counts_as_demand_for_what_it_would_choose() -> None:
    steps = Steps("code", "prose")
    steps.take(CODE, ready=[CODE, PROSE])
    steps.take(None, ready=[PROSE], fallback=FallbackReason.POLICY)
    assert steps.values(names.ARM_DEMAND) == {("code",): 2, ("prose",): 1}


def test_only_listed_tenants_have_names() -> None:
    registry = Registry()
    metrics = RequestMetrics(registry, frozenset({"payroll"}))
    for caller in ("payroll", "somebody", "nobody"):
        usage = Usage(num_input=10, num_output=3, device_seconds={"verifier": 0.5})
        session: Any = SimpleNamespace(usage=usage)
        metrics.used(session, caller)
    values = {
        (family.metric.name, *point.values): point.value
        for family in registry.collect()
        for point in family.points
        if not isinstance(point, HistogramPoint)
    }
    assert values[names.TOKENS.name, "output", "payroll"] == 3
    assert values[names.TOKENS.name, "output", "other"] == 6
    assert values[names.DEVICE_TIME.name, "verifier", "payroll"] == 0.5
    assert values[names.DEVICE_TIME.name, "verifier", "other"] == 1.0

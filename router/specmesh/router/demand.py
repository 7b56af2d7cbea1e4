"""The demand for pools, step by step: `specmesh.arm.demand`, which outlives the last replica of a pool."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping

from specmesh.router.arms import DraftScope
from specmesh.router.committed import CommittedStep
from specmesh.router.drafts import ArmRecord
from specmesh.router.policies.demand import KnowsDemand, UnloadedTimes
from specmesh.router.policies.interface import Arm, ArmView, Policy, StepView
from specmesh.runtime.telemetry.instruments import CounterFamily

SHARE = 1 / 32
"""Of the steps, drawn by lot, that are looked at, each standing for all of them: looking takes as long as choosing."""


class Demand:
    """Of one router. It remembers the arms that it has seen, one a pool."""

    def __init__(
        self,
        counter: CounterFamily,
        policy: Policy,
        arms: Mapping[Arm, ArmRecord],
        *,
        pools: Iterable[str] = (),
        share: float = SHARE,
        lot: Callable[[], float] | None = None,
    ) -> None:
        """`arms`: those that have a replica at the moment, in whatever state. `pools` have a count from the start: an
        increase is seen only where there was a 0 before. `lot`: a number from 0 to 1.
        """
        for pool in pools:
            counter.of(pool)
        self._share = share
        self._lot = lot or random.Random().random
        self._counter = counter
        self._knows = policy if isinstance(policy, KnowsDemand) else None
        self._arms = arms
        self._known: dict[str, ArmRecord] = {}
        self.unloaded = UnloadedTimes()
        """What blocks take when nothing waits; whoever counts the steps tells it of some of them."""

    def count(self, step: CommittedStep) -> None:
        """A committed step: if the lot falls on it, it counts for each pool that it would choose."""
        if self._lot() >= self._share:
            return
        session = step.session
        for record in self._arms.values():
            self._known[record.facts.pool] = record
        if session.held_out or not step.view.max_block_length:
            return
        scope = session.plan.scope
        missing = scope.pools - {each.arm.pool for each in step.view.arms}
        unseen = missing - self._known.keys()
        absent = [self._known[pool] for pool in missing - unseen] if missing else []
        views = [_view(record) for record in absent if _might(record, scope, step.view)]
        for pool in {arm.pool for arm in self._wanted(step, views)} | unseen:
            self._counter.of(pool).add(1 / self._share)

    def _wanted(self, step: CommittedStep, absent: list[ArmView]) -> Collection[Arm]:
        if self._knows is not None:
            return self._knows.in_demand(step.view, absent, self.unloaded.seconds)
        chosen = [step.choice.arm] if step.choice.arm is not None else []
        return [*chosen, *(each.arm for each in absent)]


def _view(record: ArmRecord) -> ArmView:
    return ArmView(record.facts.arm, record.max_block_length, record.stats.draft_seconds)


def _might(record: ArmRecord, scope: DraftScope, view: StepView) -> bool:
    """Whether a replica of the arm that is not ready would be allowed to draft for the step if it were."""
    allowed = scope.permits(record.facts) and view.position < record.max_context_tokens
    return allowed and not record.quarantined and not record.ready

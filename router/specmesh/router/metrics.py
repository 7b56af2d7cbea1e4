"""What a router measures of steps and requests. Series are looked up once and kept: a step costs a few microseconds."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specmesh.router.committed import CommittedStep
from specmesh.router.demand import Demand
from specmesh.router.drafts import ArmRecord
from specmesh.router.policies.interface import Arm
from specmesh.router.session import Session
from specmesh.router.timing import PARTS, StepNanoseconds
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.instruments import Count, Deferred, Registry, Values
from specmesh.runtime.telemetry.spans import Span
from specmesh.runtime.types import BlockRefusal, FallbackReason, StepResult

MAX_POSITIONS = 16
"""Places of a block with series of their own."""
OTHER_TENANT = "other"
GROUPS = {False: "speculating", True: "held_out"}


class _OfArm:
    """Series of one arm, or of plain decoding."""

    def __init__(self, registry: Registry, arm: Arm | None) -> None:
        pool, name = (arm.pool, arm.name) if arm else ("", "")
        places = [str(place) for place in range(1, MAX_POSITIONS + 1)]
        self.steps = registry.counter(names.STEPS).of(pool, name)
        self.emitted = registry.counter(names.EMITTED).of(pool, name)
        self.drafted = [registry.counter(names.DRAFTED).of(pool, place) for place in places] if arm else []
        self.accepted = [registry.counter(names.ACCEPTED).of(pool, place) for place in places] if arm else []
        # All of them from the start: an increase is seen only where there was a 0 before.
        refusals = registry.counter(names.REFUSALS)
        self.refusals = {reason: refusals.of(pool, reason.value) for reason in BlockRefusal} if arm else {}


class _Step(NamedTuple):
    """What of a committed step is counted; nothing of its session, which may be over by then."""

    spent: StepNanoseconds
    arm: Arm | None
    result: StepResult
    num_proposed: int
    compute_ns: int
    held_out: bool | None
    """None of a session that says something of drafts."""
    fallback: FallbackReason | None


class StepMetrics:
    """Of all steps of a router."""

    def __init__(self, registry: Registry, demand: Demand) -> None:
        self._registry = registry
        durations = registry.histogram(names.STEP_DURATION)
        self._total = durations.of("total")
        self._parts = [durations.of(part) for part in PARTS]
        fallbacks = registry.counter(names.FALLBACKS)
        self._fallbacks = {reason: fallbacks.of(reason.value) for reason in FallbackReason}
        self._demand = demand
        self._steps: Deferred[_Step] = Deferred(registry, self._record)
        self._arms: dict[Arm | None, _OfArm] = {None: _OfArm(registry, None)}
        time, tokens = registry.counter(names.GROUP_TIME), registry.counter(names.GROUP_TOKENS)
        self._groups = {held_out: (time.of(group), tokens.of(group)) for held_out, group in GROUPS.items()}

    def done(self, step: CommittedStep, span: Span | None) -> None:
        """A step is committed. `span` is its own, when it is traced."""
        session, drafted, result = step.session, step.drafted, step.result
        group = session.held_out if session.plan.leaves_drafts_to_policy else None
        compute_ns = 0 if drafted.work.predicted else drafted.work.compute_ns
        self._steps.note(
            _Step(step.spent, drafted.arm, result, len(drafted.block.token_ids), compute_ns, group, step.fallback)
        )
        if span is not None:
            self._total.link(step.spent.total / 1e9, span.trace_id, span.span_id)
        self._demand.count(step)

    def _record(self, step: _Step) -> None:
        spent, arm, result = step.spent, step.arm, step.result
        self._total.record(spent.total / 1e9)
        times = (spent.draft, spent.network, spent.queue, spent.forward, spent.verify, spent.router)
        for series, nanoseconds in zip(self._parts, times, strict=True):
            series.record(nanoseconds / 1e9)
        of_arm = self._arms.get(arm) or self._arms.setdefault(arm, _OfArm(self._registry, arm))
        of_arm.steps.add()
        of_arm.emitted.add(len(result.token_ids))
        if step.held_out is not None:
            time, tokens = self._groups[step.held_out]
            time.add(spent.total / 1e9)
            tokens.add(len(result.token_ids))
        if step.fallback is not None:
            self._fallbacks[step.fallback].add()
        if arm is not None:
            self._demand.unloaded.add(arm, step.compute_ns / 1e9, step.num_proposed)
            _count_places(of_arm.drafted, result.num_drafted)
            _count_places(of_arm.accepted, result.num_accepted)
            if result.block_refusal is not None:
                of_arm.refusals[result.block_refusal].add()


def _count_places(series: Sequence[Count], number: int) -> None:
    for place in range(min(number, MAX_POSITIONS)):
        series[place].add()
    if number > MAX_POSITIONS:
        series[-1].add(number - MAX_POSITIONS)


class RequestMetrics:
    """Of all requests of a router. Tenants that are not listed count as one: names of callers must not make series."""

    def __init__(self, registry: Registry, tenants: frozenset[str]) -> None:
        self._tenants = tenants
        self._first_token = registry.histogram(names.FIRST_TOKEN)
        self._per_token = registry.histogram(names.PER_TOKEN)
        self._durations = registry.histogram(names.REQUEST_DURATION)
        self._tokens = registry.counter(names.TOKENS)
        self._device_time = registry.counter(names.DEVICE_TIME)

    def first_token(self, operation: str, model: str, seconds: float, span: Span | None) -> None:
        """A request has its first token."""
        series = self._first_token.of(operation, model)
        series.record(seconds)
        if span is not None:
            series.link(seconds, span.trace_id, span.span_id)

    def ended(
        self, operation: str, model: str, error_type: str, seconds: float, seconds_per_token: float | None
    ) -> None:
        """A request is over. `seconds_per_token` is None when it had fewer than two."""
        self._durations.of(operation, model, error_type).record(seconds)
        if seconds_per_token is not None:
            self._per_token.of(operation, model).record(seconds_per_token)

    def used(self, session: Session, caller: str) -> None:
        """What a session took, also when it did not end well."""
        tenant = caller if caller in self._tenants else OTHER_TENANT
        usage = session.usage
        for kind, number in (
            ("input", usage.num_input),
            ("cached_input", usage.num_cached_input),
            ("output", usage.num_output),
        ):
            self._tokens.of(kind, tenant).add(number)
        for pool, seconds in usage.device_seconds.items():
            self._device_time.of(pool, tenant).add(seconds)


def observe_router(
    registry: Registry,
    *,
    num_sessions: Callable[[], int],
    num_waiting: Callable[[], int],
    num_verifiers: Callable[[], int],
    arms: Callable[[], Sequence[ArmRecord]],
    states: Callable[[], dict[Values, int]],
) -> None:
    """Gauges, looked at when they are collected. `states`: replicas by pool, arm and state."""
    registry.observe(names.ROUTER_SESSIONS, lambda: [((), num_sessions())])
    registry.observe(names.ROUTER_QUEUE, lambda: [((), num_waiting())])
    registry.observe(names.VERIFIERS, lambda: [((), num_verifiers())])
    registry.observe(names.ARM_STATE, lambda: states().items())
    registry.observe(
        names.ARM_ACCEPTANCE,
        lambda: [((record.facts.pool, record.facts.name), record.stats.acceptance) for record in arms()],
    )

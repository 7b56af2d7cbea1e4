"""What a router measures of steps and requests. Steps are noted, and added up many at a time."""

import random
from collections.abc import Callable, Sequence
from itertools import compress, repeat
from operator import is_

from specmesh.router.committed import CommittedStep
from specmesh.router.demand import Demand
from specmesh.router.drafts import ArmRecord
from specmesh.router.policies.interface import Arm
from specmesh.router.session import Session
from specmesh.router.timing import StepNanoseconds
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.instruments import Count, Deferred, Registry, Tally, Values
from specmesh.runtime.telemetry.spans import Span
from specmesh.runtime.types import BlockRefusal, FallbackReason

MAX_POSITIONS = 16
"""Places of a block with series of their own."""
TIMED = 8
"""One block in so many says how quick its arm is when it is not busy. The first is drawn by lot: where sessions take
turns, every so-many-th is always the same one's."""
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


_Outcome = tuple[Arm | None, int, int, int, FallbackReason | None, BlockRefusal | None, bool | None]
"""Arm; tokens drafted, accepted and emitted; why without a draft; why the block was refused; whether the session is
held out, None of one that says something of drafts. Steps of which the same came are counted together."""

_Step = tuple[StepNanoseconds, Arm | None, int, int, bool | None, _Outcome]
"""Times; arm, tokens of the block, nanoseconds that it took to compute; whether held out; what came of it. Nothing of
the session, which may be over when this is looked at. Tuples, as to make anything else takes a tenth of what telemetry
may take of a step."""


class StepMetrics:
    """Of all steps of a router."""

    def __init__(self, registry: Registry, demand: Demand, *, lot: Callable[[], float] | None = None) -> None:
        """`lot`: a number from 0 to below 1."""
        self._registry = registry
        self._lot = lot or random.Random().random
        durations = registry.histogram(names.STEP_DURATION)
        self._durations = [durations.of(part) for part in StepNanoseconds._fields]
        fallbacks = registry.counter(names.FALLBACKS)
        self._fallbacks = {reason: fallbacks.of(reason.value) for reason in FallbackReason}
        self._demand = demand
        self._steps: Deferred[_Step] = Deferred(registry, self._record)
        self._outcomes: Tally[_Outcome] = Tally(registry, self._count)
        self._arms: dict[Arm | None, _OfArm] = {None: _OfArm(registry, None)}
        time, tokens = registry.counter(names.GROUP_TIME), registry.counter(names.GROUP_TOKENS)
        self._groups = {held_out: (time.of(group), tokens.of(group)) for held_out, group in GROUPS.items()}

    def done(self, step: CommittedStep, span: Span | None = None) -> None:
        """A step is committed. `span` is its own, when it is traced."""
        session, drafted, result = step.session, step.drafted, step.result
        arm, group = drafted.arm, session.held_out if session.leaves_drafts_to_policy else None
        num_emitted = len(result.token_ids)
        refusal = result.block_refusal
        outcome = (arm, result.num_drafted, result.num_accepted, num_emitted, step.fallback, refusal, group)
        compute_ns = 0 if drafted.work.predicted else drafted.work.compute_ns
        self._steps.note((step.spent, arm, len(drafted.block.token_ids), compute_ns, group, outcome))
        if span is not None:
            self._durations[0].link(step.spent.total / 1e9, span.trace_id, span.span_id)
        self._demand.count(step)

    def _record(self, steps: Sequence[_Step]) -> None:
        spent, arms, num_proposed, compute_ns, groups, outcomes = zip(*steps, strict=True)
        columns = tuple(zip(*spent, strict=True))
        for series, nanoseconds in zip(self._durations, columns, strict=True):
            series.record_nanoseconds(nanoseconds)
        self._outcomes.add(outcomes)
        drawn = slice(int(self._lot() * TIMED), None, TIMED)
        self._demand.unloaded.add(zip(arms[drawn], compute_ns[drawn], num_proposed[drawn], strict=True))
        for held_out in {*groups} - {None}:
            of_group = compress(columns[0], map(is_, groups, repeat(held_out)))
            self._groups[held_out][0].add(sum(of_group) / 1e9)

    def _count(self, outcome: _Outcome, number: int) -> None:
        """So many steps of which the same came."""
        arm, num_drafted, num_accepted, num_emitted, fallback, refusal, held_out = outcome
        of_arm = self._arms.get(arm) or self._arms.setdefault(arm, _OfArm(self._registry, arm))
        of_arm.steps.add(number)
        of_arm.emitted.add(num_emitted * number)
        if held_out is not None:
            self._groups[held_out][1].add(num_emitted * number)
        if fallback is not None:
            self._fallbacks[fallback].add(number)
        if arm is not None:
            _count_places(of_arm.drafted, num_drafted, number)
            _count_places(of_arm.accepted, num_accepted, number)
            if refusal is not None:
                of_arm.refusals[refusal].add(number)


def _count_places(series: Sequence[Count], num_tokens: int, num_blocks: int) -> None:
    for place in range(min(num_tokens, MAX_POSITIONS)):
        series[place].add(num_blocks)
    if num_tokens > MAX_POSITIONS:
        series[-1].add((num_tokens - MAX_POSITIONS) * num_blocks)


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

"""A watch that measures every request and step, and traces those whose call is traced."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Self

from specmesh.router.committed import CommittedStep
from specmesh.router.demand import Demand
from specmesh.router.drafts import Drafts
from specmesh.router.limits import Gate
from specmesh.router.metrics import RequestMetrics, StepMetrics, observe_router
from specmesh.router.policies.interface import Arm, Choice, Policy
from specmesh.router.session import Session
from specmesh.router.tracing import LaterSteps, SessionTrace, StepSpans
from specmesh.router.verifiers import Verifiers
from specmesh.router.watching import UNWATCHED, Unwatched, WatchedRequest, WatchedStep
from specmesh.runtime.errors import MeshError
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.instruments import Registry, Values
from specmesh.runtime.telemetry.spans import CANCELLED, current_span
from specmesh.runtime.types import ArmState


class Telemetry:
    """Of one router."""

    def __init__(self, registry: Registry, tenants: frozenset[str], demand: Demand) -> None:
        """`tenants`: callers whose use is told apart."""
        self.requests = RequestMetrics(registry, tenants)
        self.traces: dict[int, SessionTrace] = {}
        self._steps = StepMetrics(registry, demand)
        self._measured = _MeasuredStep(self._steps)

    def request(self, operation: str) -> WatchedRequest:
        """A request has arrived."""
        return _Request(self, operation)

    def step(self, session: Session) -> WatchedStep:
        """A session takes a step."""
        trace = self.traces.get(session.session_id) if self.traces else None
        if trace is None:
            return self._measured
        spans = trace.step(session)
        return _TracedStep(self._steps, spans) if isinstance(spans, StepSpans) else _LaterStep(self._steps, spans)


class _MeasuredStep(Unwatched):
    """Any step that is not traced; it holds nothing of one."""

    __slots__ = ("done",)

    done: Callable[[CommittedStep], None]

    def __init__(self, metrics: StepMetrics) -> None:
        self.done = metrics.done


class _LaterStep(Unwatched):
    """A step after those that have spans of their own."""

    __slots__ = ("_metrics", "_spans")

    def __init__(self, metrics: StepMetrics, spans: LaterSteps) -> None:
        self._metrics = metrics
        self._spans = spans

    def done(self, step: CommittedStep) -> None:
        """Count it, and add it up."""
        self._spans.done(step)
        self._metrics.done(step, self._spans.span)


class _TracedStep:
    """A step with spans of its own."""

    __slots__ = ("_metrics", "_spans")

    def __init__(self, metrics: StepMetrics, spans: StepSpans) -> None:
        self._metrics = metrics
        self._spans = spans

    def __enter__(self) -> Self:
        self._spans.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._spans.__exit__(kind, error, trace)

    def draft(self, choice: Choice) -> AbstractContextManager[object]:
        """A client span, if a draft is asked at all."""
        return self._spans.message(names.DRAFT_SPAN) if choice.block_length else UNWATCHED

    def verify(self, *, asked: bool) -> AbstractContextManager[object]:
        """A client span, if the verifier is asked at all."""
        return self._spans.message(names.VERIFY_SPAN) if asked else UNWATCHED

    def done(self, step: CommittedStep) -> None:
        """Count it, and say in its spans what came of it."""
        self._spans.done(step)
        self._metrics.done(step, self._spans.span)


class _Request:
    """One request, from its arrival to its end."""

    __slots__ = ("_arrived", "_caller", "_first", "_model", "_operation", "_session", "_telemetry")

    def __init__(self, telemetry: Telemetry, operation: str) -> None:
        self._telemetry = telemetry
        self._operation = operation
        self._arrived = time.perf_counter()
        self._first: float | None = None
        self._model = self._caller = ""
        self._session: Session | None = None

    def __enter__(self) -> Self:
        return self

    def serve(self, session: Session, caller: str, model: str) -> None:
        """Its steps are traced from now on if its call is."""
        self._session, self._caller, self._model = session, caller, model
        span = current_span()
        if span is not None:
            span.attributes |= {names.OPERATION: self._operation, names.MODEL: model}
            self._telemetry.traces[session.session_id] = SessionTrace(span)

    def event(self) -> None:
        """The first one comes with the first token."""
        if self._first is None:
            self._first = time.perf_counter()
            seconds = self._first - self._arrived
            self._telemetry.requests.first_token(self._operation, self._model, seconds, current_span())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        now, requests, session = time.perf_counter(), self._telemetry.requests, self._session
        per_token = None
        if session is not None:
            requests.used(session, self._caller)
            later_tokens = session.usage.num_output - 1
            if self._first is not None and later_tokens > 0:
                per_token = (now - self._first) / later_tokens
            spans = self._telemetry.traces.pop(session.session_id, None)
            if spans is not None:
                spans.end(session)
        requests.ended(self._operation, self._model, _error_type(error), now - self._arrived, per_token)


def _error_type(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, MeshError):
        return error.status.name
    return CANCELLED if isinstance(error, asyncio.CancelledError | GeneratorExit) else type(error).__qualname__


def watch_router(
    registry: Registry,
    tenants: frozenset[str],
    *,
    drafts: Drafts,
    verifiers: Verifiers,
    gate: Gate,
    policy: Policy,
    pools: Iterable[str],
) -> Telemetry:
    """Telemetry of a router's parts."""

    def states() -> dict[Values, int]:
        found: Counter[Values] = Counter()
        for replica in drafts.replicas():
            arm = Arm(replica.pool, replica.info.model_digest).name if replica.info else ""
            found[replica.pool, arm, ArmState.READY.value] += 0  # an arm that is out shows as 0 that are ready
            found[replica.pool, arm, replica.health.state.value] += 1
        return found

    observe_router(
        registry,
        num_sessions=lambda: gate.num_inside,
        num_waiting=lambda: gate.num_waiting,
        num_verifiers=lambda: sum(replica.connected for replica in verifiers.replicas()),
        arms=lambda: list(drafts.arms.values()),
        states=states,
    )
    demand = Demand(registry.counter(names.ARM_DEMAND), policy, drafts.arms, pools=pools)
    return Telemetry(registry, tenants, demand)

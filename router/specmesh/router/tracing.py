"""Spans of a request's steps: the first ones each, the rest as one. A request that is not traced has none of this."""

import time
from typing import Self

from specmesh.router.committed import CommittedStep
from specmesh.router.drafts import Drafted
from specmesh.router.session import Session
from specmesh.router.timing import StepNanoseconds
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.spans import Kind, Span, enter_span, leave_span
from specmesh.runtime.types import FallbackReason, StepResult

DEADLINE = "DEADLINE_EXCEEDED"
REFUSED = "block_refused"


class _Cause:
    """Whatever a session sends, or its task calls, within the `with` is caused by a span."""

    __slots__ = ("_before", "_entered", "_session", "_span")

    def __init__(self, span: Span, session: Session) -> None:
        self._span = span
        self._session = session

    def __enter__(self) -> None:
        self._before, self._session.traceparent = self._session.traceparent, self._span.traceparent
        self._entered = enter_span(self._span)

    def __exit__(self, *exc_info: object) -> None:
        leave_span(self._entered)
        self._session.traceparent = self._before


class MessageSpan:
    """The wait for the answer to a message; sent on when its step is over, as what came of it is known only then."""

    __slots__ = ("_cause", "ended_ns", "span")

    def __init__(self, span: Span, session: Session) -> None:
        self.span = span
        self.ended_ns = 0
        self._cause = _Cause(span, session)

    def __enter__(self) -> None:
        self._cause.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.ended_ns = time.time_ns()
        self._cause.__exit__()
        if kind is not None:
            self.span.blame(kind)


class StepSpans:
    """One step: its own span and a client span for each message it sends."""

    def __init__(self, root: Span, session: Session) -> None:
        self._session = session
        self.span = root.child(names.STEP_SPAN)
        self.span.attributes[names.STEP_INDEX] = session.usage.num_steps
        self._messages: dict[str, MessageSpan] = {}
        self._cause = _Cause(self.span, session)

    def __enter__(self) -> Self:
        self._cause.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._cause.__exit__()
        for message in self._messages.values():
            message.span.end(message.ended_ns or None)
        self.span.__exit__(kind, error, trace)

    def message(self, name: str) -> MessageSpan:
        """A client span around the wait for an answer."""
        self._messages[name] = message = MessageSpan(self.span.child(name, Kind.CLIENT), self._session)
        return message

    def done(self, step: CommittedStep) -> None:
        """The step took exactly as long as its parts together."""
        attributes = self.span.attributes
        drafted = step.drafted
        attributes |= {names.BLOCK_LENGTH: step.choice.block_length, names.PREDICTED: drafted.work.predicted}
        attributes |= _outcome(step.result) | _seconds(step.spent)
        if drafted.work.predicted:
            attributes[names.OVERLAP] = drafted.work.compute_ns / 1e9
        if drafted.arm is not None:
            attributes[names.ARM] = drafted.arm.name
        if step.fallback is not None:
            attributes[names.FALLBACK] = step.fallback.value
        self._describe_draft(drafted, step.fallback)
        self._describe_verify(step.result)
        self.span.end(self.span.start_ns + step.spent.total)

    def _describe_draft(self, drafted: Drafted, fallback: FallbackReason | None) -> None:
        message = self._messages.get(names.DRAFT_SPAN)
        if message is None:
            return
        message.span.attributes |= {
            names.NUM_DRAFTED: len(drafted.block.token_ids),
            names.BATCH_SIZE: drafted.work.batch_size,
        }
        if fallback is FallbackReason.TIMEOUT:
            message.span.fail(DEADLINE)
        elif fallback is FallbackReason.INVALID_BLOCK:
            message.span.fail(REFUSED)

    def _describe_verify(self, result: StepResult) -> None:
        message = self._messages.get(names.VERIFY_SPAN)
        self.span.attributes[names.IN_RUN] = message is None
        if message is None:
            return
        message.span.attributes |= {
            names.NUM_ACCEPTED: result.num_accepted,
            names.BATCH_SIZE: result.batch_size,
        }


class LaterSteps:
    """All steps after the first MAX_STEP_SPANS, as one span with sums; their messages carry no context."""

    def __init__(self, root: Span) -> None:
        self.span = root.child(names.STEPS_SPAN)
        self._sums: dict[str, float] = {}

    def done(self, step: CommittedStep) -> None:
        """Add a step."""
        amounts: dict[str, float] = {names.STEP_COUNT: 1} | _outcome(step.result) | _seconds(step.spent)
        for key, amount in amounts.items():
            self._sums[key] = self._sums.get(key, 0) + amount

    def end(self) -> None:
        """There will be no more."""
        self.span.attributes |= self._sums
        self.span.end()


class SessionTrace:
    """Spans of one request under the span of its call."""

    def __init__(self, root: Span) -> None:
        self.root = root
        self._num_steps = 0
        self._later: LaterSteps | None = None

    def step(self, session: Session) -> StepSpans | LaterSteps:
        """A span of its own, or the one for all that follow."""
        self._num_steps += 1
        if self._num_steps <= names.MAX_STEP_SPANS:
            return StepSpans(self.root, session)
        if self._later is None:
            self._later = LaterSteps(self.root)
        return self._later

    def end(self, session: Session) -> None:
        """The request is over, well or not; the span of its call ends with the call."""
        if self._later is not None:
            self._later.end()
        usage = session.usage
        self.root.attributes |= {
            names.RULE: session.plan.rule.value,
            names.REQUEST_ID: session.plan.request_id,
            names.INPUT_TOKENS: usage.num_input,
            names.OUTPUT_TOKENS: usage.num_output,
            names.NUM_DRAFTED: usage.num_drafted,
            names.NUM_ACCEPTED: usage.num_accepted,
            names.STEP_COUNT: usage.num_steps,
        }
        if session.finish_reason is not None:
            self.root.attributes[names.FINISH_REASONS] = (session.finish_reason.value,)


def _outcome(result: StepResult) -> dict[str, float]:
    return {
        names.NUM_DRAFTED: result.num_drafted,
        names.NUM_ACCEPTED: result.num_accepted,
        names.NUM_EMITTED: len(result.token_ids),
    }


def _seconds(spent: StepNanoseconds) -> dict[str, float]:
    return {names.PART_SECONDS + part: seconds for part, seconds in spent.parts().items()}

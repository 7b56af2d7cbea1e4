"""Spans of messages on long-lived streams: from the arrival of an entry to the answer, however that comes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specmesh.runtime.telemetry.names import AHEAD_SPAN, TAKEN
from specmesh.runtime.telemetry.spans import CANCELLED, Attribute, Span, Tracer, parse_traceparent
from specmesh.runtime.types import Outcome

UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the time between an entry's turn and its answer; phases follow each other."""

    name: str
    nanoseconds: int


@dataclass(slots=True)
class _Open:
    """A span whose entry is not answered. Its turn came at `turn_ns`: with its arrival, unless it was sent ahead."""

    span: Span
    turn_ns: int


@dataclass(slots=True)
class _Ahead:
    """A conditional entry that waits for the step before it to end as it was sent ahead for."""

    span: Span
    after: Outcome
    position: int


class EntrySpans:
    """Of one stream; belongs to its event loop. Entries without a sampled context leave no trace."""

    __slots__ = ("_ahead", "_open", "_outcomes", "_tracer")

    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._open: dict[tuple[int, int], _Open] = {}
        self._ahead: dict[int, list[_Ahead]] = {}
        """By session."""
        self._outcomes: dict[int, Outcome] = {}
        """How the latest step of a session ended, while it is traced: a conditional entry may come after that."""

    def begin(
        self, name: str, session_id: int, position: int, traceparent: str, *, after: Outcome | None = None
    ) -> None:
        """An entry has arrived; `after`: it is conditional on that outcome of the step before.

        An entry that was sent before, and not answered, is cut off by one that is not conditional.
        """
        if self._tracer is None:
            return
        parent = parse_traceparent(traceparent)
        if parent is None or not parent.sampled:
            return
        span = self._tracer.of(name, parent)
        if after is None:
            self.end(session_id, position, error=CANCELLED)
            self._open[session_id, position] = _Open(span, span.start_ns)
            return
        self._ahead.setdefault(session_id, []).append(_Ahead(span, after, position))
        known = self._outcomes.get(session_id)
        if known is not None and known.position == after.position:
            self._settle(session_id, known)

    def end(
        self,
        session_id: int,
        position: int,
        attributes: Mapping[str, Attribute] | None = None,
        phases: Sequence[Phase] = (),
        *,
        error: str = "",
        outcome: Outcome | None = None,
    ) -> None:
        """It is answered. `outcome`: how its step ended, which decides what becomes of entries sent ahead."""
        found = self._open.pop((session_id, position), None) or self._refused_ahead(session_id, position, error)
        if found is not None:
            _end(found, attributes or {}, phases, error)
        if outcome is not None and (found is not None or session_id in self._ahead):
            self._outcomes[session_id] = outcome
            self._settle(session_id, outcome)

    def cancel(self, session_id: int) -> None:
        """The session was closed: nobody waits for what is still open of it."""
        self._drop(session_id, CANCELLED)

    def close(self) -> None:
        """The stream is gone."""
        for session_id in {session_id for session_id, _ in self._open} | set(self._ahead):
            self._drop(session_id, UNANSWERED)
        self._outcomes.clear()

    @property
    def any_open(self) -> bool:
        """Whether an answer may end a span."""
        return bool(self._open or self._ahead)

    def _drop(self, session_id: int, error: str) -> None:
        for key in [key for key in self._open if key[0] == session_id]:
            self.end(*key, error=error)
        self._forget_ahead(session_id)
        self._outcomes.pop(session_id, None)

    def _settle(self, session_id: int, outcome: Outcome) -> None:
        """The turn of the entry that was sent ahead for this outcome has come; the others are forgotten."""
        waiting = self._ahead.get(session_id, ())
        taken = next((ahead for ahead in waiting if ahead.after == outcome), None)
        if taken is not None:
            self._ahead[session_id].remove(taken)
            taken.span.attributes[TAKEN] = True
            now_ns = time.time_ns()
            taken.span.child(AHEAD_SPAN, start_ns=taken.span.start_ns).end(now_ns)
            self._open[session_id, taken.position] = _Open(taken.span, now_ns)
        self._forget_ahead(session_id)

    def _forget_ahead(self, session_id: int) -> None:
        for ahead in self._ahead.pop(session_id, ()):
            ahead.span.attributes[TAKEN] = False
            ahead.span.end()

    def _refused_ahead(self, session_id: int, position: int, error: str) -> _Open | None:
        """An entry that was sent ahead and is answered with an error before its turn."""
        waiting = self._ahead.get(session_id, []) if error else []
        refused = next((ahead for ahead in reversed(waiting) if ahead.position == position), None)
        if refused is None:
            return None
        waiting.remove(refused)
        return _Open(refused.span, refused.span.start_ns)


def _end(entry: _Open, attributes: Mapping[str, Attribute], phases: Sequence[Phase], error: str) -> None:
    span, start_ns, now_ns = entry.span, entry.turn_ns, time.time_ns()
    span.attributes |= attributes
    if error:
        span.fail(error)
    for phase in phases:
        end_ns = min(start_ns + phase.nanoseconds, now_ns)
        span.child(phase.name, start_ns=start_ns).end(end_ns)
        start_ns = end_ns
    span.end(now_ns)

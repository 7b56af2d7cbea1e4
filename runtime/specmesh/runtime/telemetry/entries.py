"""Spans of messages on long-lived streams: from the arrival of an entry to the answer, however that comes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specmesh.runtime.telemetry.spans import CANCELLED, Attribute, Span, TraceContext, Tracer, parse_traceparent

UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the time between arrival and answer; phases follow each other from the arrival on."""

    name: str
    nanoseconds: int


class EntrySpans:
    """Of one stream; belongs to its event loop. Entries without a sampled context leave no trace."""

    __slots__ = ("_open", "_tracer")

    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._open: dict[tuple[int, int], Span] = {}

    def begin(self, name: str, session_id: int, position: int, traceparent: str) -> None:
        """An entry has arrived. One that was sent before, and not answered, is cut off by it."""
        if self._tracer is None:
            return
        parent: TraceContext | None = parse_traceparent(traceparent)
        if parent is None or not parent.sampled:
            return
        self.end(session_id, position, error=CANCELLED)
        self._open[session_id, position] = self._tracer.of(name, parent)

    def end(
        self,
        session_id: int,
        position: int,
        attributes: Mapping[str, Attribute] | None = None,
        phases: Sequence[Phase] = (),
        *,
        error: str = "",
    ) -> None:
        """It is answered."""
        span = self._open.pop((session_id, position), None)
        if span is None:
            return
        span.attributes |= attributes or {}
        if error:
            span.fail(error)
        now_ns = time.time_ns()
        start_ns = span.start_ns
        for phase in phases:
            end_ns = min(start_ns + phase.nanoseconds, now_ns)
            span.child(phase.name, start_ns=start_ns).end(end_ns)
            start_ns = end_ns
        span.end(now_ns)

    def cancel(self, session_id: int) -> None:
        """The session was closed: nobody waits for what is still open of it."""
        for key in [key for key in self._open if key[0] == session_id]:
            self.end(*key, error=CANCELLED)

    def close(self) -> None:
        """The stream is gone."""
        for key in list(self._open):
            self.end(*key, error=UNANSWERED)

    @property
    def any_open(self) -> bool:
        """Whether an answer may end a span."""
        return bool(self._open)

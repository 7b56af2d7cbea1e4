"""Spans and their contexts (W3C Trace Context), as plain objects. A request that is not sampled makes none."""

import asyncio
import random
import re
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from specmesh.runtime.telemetry.names import ERROR_TYPE

Attribute = str | bool | int | float | tuple[str, ...]

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_IDS = random.Random()
"""Of its own: a library that seeds the shared one must not make ids repeat."""
CANCELLED = "cancelled"


class Kind(IntEnum):
    """As OTLP numbers them."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Who caused this, and whether it is traced."""

    trace_id: int
    span_id: int
    sampled: bool

    @property
    def traceparent(self) -> str:
        """As it travels."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def parse_traceparent(text: object) -> TraceContext | None:
    """A context as it arrived; None when it is none. A later version may have more behind what is known of it."""
    match = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


class Span:
    """Something that took time. Begins when it is made; as a `with` it ends with it, and says what went wrong."""

    __slots__ = (
        "_sink",
        "attributes",
        "end_ns",
        "error",
        "kind",
        "name",
        "parent_id",
        "span_id",
        "start_ns",
        "trace_id",
    )

    def __init__(
        self,
        sink: Callable[["Span"], None],
        name: str,
        kind: Kind,
        trace_id: int,
        parent_id: int = 0,
        start_ns: int | None = None,
    ) -> None:
        """`sink` gets it when it has ended; `start_ns` is in nanoseconds of the clock of the day."""
        self._sink = sink
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = _random_id(64)
        self.parent_id = parent_id
        self.attributes: dict[str, Attribute] = {}
        self.start_ns = time.time_ns() if start_ns is None else start_ns
        self.end_ns = 0
        self.error = False

    @property
    def traceparent(self) -> str:
        """For what it causes elsewhere."""
        return TraceContext(self.trace_id, self.span_id, sampled=True).traceparent

    def child(self, name: str, kind: Kind = Kind.INTERNAL, start_ns: int | None = None) -> "Span":
        """A span within it."""
        return Span(self._sink, name, kind, self.trace_id, self.span_id, start_ns)

    def end(self, end_ns: int | None = None) -> None:
        """Once; later calls change nothing."""
        if not self.end_ns:
            self.end_ns = time.time_ns() if end_ns is None else end_ns
            self._sink(self)

    def fail(self, error_type: str) -> None:
        """Say that it went wrong. `error_type` is a word of few, never a message: those could hold text."""
        self.error = True
        self.attributes[ERROR_TYPE] = error_type

    def blame(self, kind: type[BaseException]) -> None:
        """Say that an exception of this kind ended it."""
        ended = issubclass(kind, asyncio.CancelledError | GeneratorExit)
        self.fail(CANCELLED if ended else kind.__qualname__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None:
            self.blame(kind)
        self.end()


class Tracer:
    """Decides which requests are traced: as their caller did, else a share of them."""

    def __init__(self, sink: Callable[[Span], None], sample_ratio: float) -> None:
        self._sink = sink
        self._bound = round(sample_ratio * 2**64)

    def entry(self, name: str, traceparent: object) -> Span | None:
        """The server span of a call or a message that came with `traceparent`; None when it is not traced."""
        parent = parse_traceparent(traceparent)
        if parent is not None:
            return self.of(name, parent) if parent.sampled else None
        trace_id = _random_id(128)
        # By the id's last 64 bits, so that whoever sees the id decides alike.
        if trace_id & (2**64 - 1) >= self._bound:
            return None
        return Span(self._sink, name, Kind.SERVER, trace_id)

    def of(self, name: str, parent: TraceContext, start_ns: int | None = None) -> Span:
        """A server span under a span of another process."""
        return Span(self._sink, name, Kind.SERVER, parent.trace_id, parent.span_id, start_ns)


_current: ContextVar[Span | None] = ContextVar("span", default=None)


def current_span() -> Span | None:
    """Of the call that this task serves; None when it is not traced."""
    return _current.get()


def enter_span(span: Span) -> "Token[Span | None]":
    """What this task does and starts from now on is caused by `span`."""
    return _current.set(span)


def leave_span(entered: "Token[Span | None]") -> None:
    """As it was before; in the same task. A call's own span, whose task ends with it, need not be left."""
    _current.reset(entered)


def _random_id(bits: int) -> int:
    return _IDS.getrandbits(bits) or 1

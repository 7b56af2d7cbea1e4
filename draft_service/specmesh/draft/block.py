"""A block being drafted, and the events that tell a router of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specmesh.draft.drafter import Proposal, Score, Turn
from specmesh.draft.session import Session
from specmesh.runtime.types import ContextSource, DraftAsk, DraftEndReason, EntryErrorReason


@dataclass(slots=True)
class Tokens:
    """Consecutive tokens of a block."""

    offset: int
    proposals: Sequence[Proposal]


@dataclass(slots=True)
class Ended:
    """The end of the answer to an entry; `scores` is empty when none were asked for, or none are to be had."""

    num_drafted: int
    reason: DraftEndReason
    source: ContextSource
    queue_ns: int
    compute_ns: int
    batch_size: int
    scores: Sequence[Score] = ()


@dataclass(frozen=True, slots=True)
class Needed:
    """The context is not held beyond `have_length`."""

    have_length: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of the answer, by failure."""

    reason: EntryErrorReason
    message: str


class Receiver(Protocol):
    """Who asked: one router's stream."""

    def receive(self, event: "Event") -> None:
        """Pass an event on."""
        ...


@dataclass(slots=True)
class Event:
    """Something to tell the router that asked."""

    receiver: Receiver
    ask: DraftAsk
    what: Tokens | Ended | Needed | Failed


class EntryRefused(Exception):
    """An entry that cannot be served; the other entries of its frame go on."""

    def __init__(self, reason: EntryErrorReason, message: str) -> None:
        super().__init__(message)
        self.failure = Failed(reason, message)


@dataclass(slots=True)
class DraftBlock:
    """The work on one entry. Times in seconds of the engine's clock; infinite where there is no limit."""

    ask: DraftAsk
    session: Session
    receiver: Receiver
    turn: Turn
    length: int
    """Tokens to draft: what was asked for, or fewer where the draft's context ends."""
    arrived: float
    useful_until: float
    deadline: float
    started: float | None = None
    cold: bool = False
    caught_up: bool = False
    proposals: list[Proposal] = field(default_factory=list)
    num_sent: int = 0
    scores: tuple[Score, ...] = ()
    compute_seconds: float = 0.0
    num_ticks: int = 0
    num_neighbours: int = 0

    def took_part(self, seconds: float, batch_size: int) -> None:
        """Count one tick."""
        self.compute_seconds += seconds
        self.num_ticks += 1
        self.num_neighbours += batch_size

    def unsent(self) -> Tokens | None:
        """What has been drafted and not been told yet; told from now on."""
        if self.num_sent == len(self.proposals):
            return None
        tokens = Tokens(self.num_sent, tuple(self.proposals[self.num_sent :]))
        self.num_sent = len(self.proposals)
        return tokens

    def end(self, reason: DraftEndReason) -> Ended:
        """The last event."""
        started = self.arrived if self.started is None else self.started
        return Ended(
            num_drafted=len(self.proposals),
            reason=reason,
            source=ContextSource.COLD if self.cold else ContextSource.WARM,
            queue_ns=round((started - self.arrived) * 1e9),
            compute_ns=round(self.compute_seconds * 1e9),
            batch_size=-(-self.num_neighbours // self.num_ticks) if self.num_ticks else 0,
            scores=self.scores,
        )

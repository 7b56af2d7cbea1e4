"""Sessions that wait for memory: a bounded queue, higher priority first, then who came first.

New sessions wait here, and those that had to give their memory up: they keep the place that they came with, so none of
them waits behind a session that came later.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specmesh.runtime.errors import MeshError, Overloaded
from specmesh.runtime.types import SessionSpec
from specmesh.verifier.session import NEVER_NS, Rank, Session, SessionKey


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """An `Open` that has not been answered.

    `settle` is called on the event loop: with an error, or, when it is admitted, with how many tokens of its context
    are in the cache already.
    """

    spec: SessionSpec
    settle: Callable[[MeshError | int], None]
    deadline_ns: int = NEVER_NS

    @property
    def key(self) -> SessionKey:
        """The session's key."""
        return self.spec.peer, self.spec.session_id


Waiting = Opening | Session


class AdmissionQueue:
    """Strict order: a small session never overtakes a large one, which would otherwise wait for ever."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting: list[tuple[Rank, Waiting]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def openings(self) -> Iterator[Opening]:
        """Those that are not admitted yet."""
        return (item for _, item in self._waiting if isinstance(item, Opening))

    @property
    def num_put_back(self) -> int:
        """Sessions that are open and have no memory."""
        return sum(isinstance(item, Session) for _, item in self._waiting)

    def add(self, opening: Opening) -> None:
        """Queue an opening, also beyond the limit: the caller first tries to admit, then calls `refuse_excess`."""
        self._arrivals += 1
        insort(self._waiting, ((-opening.spec.priority, self._arrivals), opening))

    def put_back(self, session: Session) -> None:
        """A session that has lost its memory waits where its rank says."""
        insort(self._waiting, (session.rank, session))

    def refuse_excess(self, newest: Opening) -> MeshError | None:
        """The error for `newest`, taken out again, if it waits and the queue is over its limit."""
        if sum(1 for _ in self.openings) <= self._max_waiting or not self.remove(newest):
            return None
        return Overloaded(f"engine.max_waiting_sessions: {self._max_waiting} sessions already wait to be admitted")

    def first(self) -> tuple[Rank, Waiting] | None:
        """Who is next."""
        return self._waiting[0] if self._waiting else None

    def take_openings(self, which: Callable[[Opening], bool]) -> list[Opening]:
        """Those out of the queue that are not admitted yet and for which `which` is true."""
        taken = [opening for opening in self.openings if which(opening)]
        for opening in taken:
            self.remove(opening)
        return taken

    def remove(self, item: Waiting) -> bool:
        """Whether it was there."""
        before = len(self._waiting)
        self._waiting = [each for each in self._waiting if each[1] is not item]
        return len(self._waiting) < before

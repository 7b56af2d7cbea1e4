"""Sessions that wait for memory: a bounded queue, higher priority first, then first come first served."""

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specmesh.runtime.errors import MeshError, Overloaded
from specmesh.runtime.types import SessionSpec
from specmesh.verifier.session import NEVER_NS, SessionKey


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """An `Open` that has not been answered; `settle` is called on the event loop, with None when it is admitted."""

    spec: SessionSpec
    settle: Callable[[MeshError | None], None]
    deadline_ns: int = NEVER_NS

    @property
    def key(self) -> SessionKey:
        """The session's key."""
        return self.spec.peer, self.spec.session_id


class AdmissionQueue:
    """Strict order: a small session never overtakes a large one, which would otherwise wait for ever."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting: list[tuple[int, int, Opening]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Opening]:
        return (opening for _, _, opening in self._waiting)

    def add(self, opening: Opening) -> None:
        """Queue an opening, also beyond the limit: the caller first tries to admit, then calls `refuse_excess`."""
        self._arrivals += 1
        insort(self._waiting, (-opening.spec.priority, self._arrivals, opening))

    def refuse_excess(self, newest: Opening) -> MeshError | None:
        """The error for `newest`, taken out again, if it waits and the queue is over its limit."""
        if len(self._waiting) <= self._max_waiting or not self.remove(newest):
            return None
        return Overloaded(f"engine.max_waiting_sessions: {self._max_waiting} sessions already wait for cache memory")

    def first(self) -> Opening | None:
        """Who is next."""
        return self._waiting[0][2] if self._waiting else None

    def remove(self, opening: Opening) -> bool:
        """Whether it was there."""
        before = len(self._waiting)
        self._waiting = [item for item in self._waiting if item[2] is not opening]
        return len(self._waiting) < before

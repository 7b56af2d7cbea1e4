"""Bounded admission: so many at a time, so many waiting, the rest refused with a time to come back."""

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count

from specmesh.router.callers import Caller
from specmesh.runtime.errors import Overloaded, QuotaExceeded


class Gate:
    """At most `capacity` inside; at most `max_waiting` wait, higher priority first, then in order of arrival."""

    def __init__(self, name: str, capacity: int, max_waiting: int | None, retry_seconds: float = 1.0) -> None:
        """`name` is the limit that a refusal names; `max_waiting` None leaves the bound to whoever feeds the gate."""
        self._name = name
        self._capacity = capacity
        self._max_waiting = max_waiting
        self._retry_seconds = retry_seconds
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self.num_inside = 0

    @property
    def num_waiting(self) -> int:
        """How many wait for their turn."""
        return sum(not turn.done() for _, _, turn in self._waiting)

    @asynccontextmanager
    async def turn(self, priority: int = 0) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises `Overloaded` when too many wait already."""
        if self.num_inside < self._capacity:
            self.num_inside += 1
        else:
            await self._wait(priority)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, priority: int) -> None:
        if self._max_waiting is not None and self.num_waiting >= self._max_waiting:
            message = f"{self._name}: {self._capacity} in work and {self._max_waiting} waiting already"
            raise Overloaded(message, retry_after=self._retry_seconds)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-priority, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self.num_inside -= 1


class CallerQuota:
    """Requests of each caller, waiting ones included."""

    def __init__(self, retry_seconds: float) -> None:
        self._retry_seconds = retry_seconds
        self._requests: Counter[str] = Counter()

    @contextmanager
    def hold(self, caller: Caller) -> Iterator[None]:
        """Count a request of `caller` while it lasts. Raises `QuotaExceeded`."""
        if caller.max_sessions and self._requests[caller.name] >= caller.max_sessions:
            message = f"limits.max_sessions_per_caller: {caller.max_sessions} requests of this caller already"
            raise QuotaExceeded(message, retry_after=self._retry_seconds)
        self._requests[caller.name] += 1
        try:
            yield
        finally:
            self._requests[caller.name] -= 1
            if not self._requests[caller.name]:
                del self._requests[caller.name]

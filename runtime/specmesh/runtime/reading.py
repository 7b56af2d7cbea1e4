"""Whether a client takes what its stream has for it."""

import asyncio
from typing import TYPE_CHECKING, Any, Self

import grpc.aio

from specmesh.runtime.errors import NotRead

if TYPE_CHECKING:
    # Generic in its stub only.
    Context = grpc.aio.ServicerContext[Any, Any]


class WatchedWriter:
    """A `with` around a stream's messages; whatever task writes, one at a time.

    One timer a stream, which looks how long the present write has waited: a timer a message would cost microseconds.
    """

    def __init__(self, context: "Context", max_unread_seconds: float, advice: str = "") -> None:
        """`advice`: what a client can do whose stream has ended so."""
        self._context = context
        self._seconds = max_unread_seconds
        self._advice = advice
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._since: float | None = None
        self._writing: asyncio.Task[Any] | None = None
        self._unread: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._seconds, self._look)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def write(self, message: object) -> None:
        """Hand a message to gRPC, which takes it while the client reads. Raises `NotRead`."""
        self._since, self._writing = self._loop.time(), asyncio.current_task()
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            # A client that went away at that very moment has cancelled the task as well.
            if self._unread is None or self._unread.uncancel():
                raise
            raise NotRead(
                f"server.max_unread_seconds: nothing of this stream was taken for {self._seconds:g} s; "
                f"read it as it comes{self._advice}"
            ) from None
        finally:
            self._since = self._writing = self._unread = None

    def _look(self) -> None:
        waited = 0.0 if self._since is None else self._loop.time() - self._since
        if waited < self._seconds:
            self._timer = self._loop.call_later(self._seconds - waited, self._look)
        else:
            # Once more when the loop has come round: it may have stood still, with a message taken long ago.
            self._timer = self._loop.call_soon(self._end, self._since)

    def _end(self, since: float | None) -> None:
        if self._since != since:
            self._look()
        elif self._writing is not None:
            self._unread = self._writing
            self._unread.cancel()

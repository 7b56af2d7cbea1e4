"""Whether a client takes what its stream has for it."""

import asyncio
from typing import TYPE_CHECKING, Any, Self

import grpc.aio

from specmesh.runtime.errors import NotRead

if TYPE_CHECKING:
    # Generic in its stub only.
    Context = grpc.aio.ServicerContext[Any, Any]


class WatchedWriter:
    """A `with` around a stream's messages, in the task that writes them.

    One timer a stream, which looks how long the present write has waited: a timer a message would cost microseconds.
    """

    def __init__(self, context: "Context", max_unread_seconds: float) -> None:
        self._context = context
        self._seconds = max_unread_seconds
        self._since: float | None = None
        self._unread = False

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer = self._loop.call_later(self._seconds, self._look)
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()

    async def write(self, message: object) -> None:
        """Hand a message to gRPC, which takes it while the client reads. Raises `NotRead`."""
        self._since = self._loop.time()
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            # A client that went away at that very moment has cancelled the task as well.
            if not self._unread or (self._task is not None and self._task.uncancel()):
                raise
            raise NotRead(
                f"server.max_unread_seconds: nothing of this stream was taken for {self._seconds:g} s; read it as it "
                "comes. A generation goes on by another request with what came as continuation_token_ids"
            ) from None
        finally:
            self._since = None

    def _look(self) -> None:
        waited = 0.0 if self._since is None else self._loop.time() - self._since
        if waited < self._seconds:
            self._timer = self._loop.call_later(self._seconds - waited, self._look)
        elif self._task is not None:
            self._unread = True
            self._task.cancel()

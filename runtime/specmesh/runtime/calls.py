"""The interceptor between gRPC and the servicers: who may call, errors to status, draining, the limit of calls.

A servicer raises; only this file knows how a failure looks on the wire.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from specmesh.runtime.access import Access
from specmesh.runtime.errors import Draining, InvalidValue, MeshError, NotRead, Overloaded
from specmesh.runtime.reading import WatchedWriter
from specmesh.runtime.status import error_metadata

_log = logging.getLogger(__name__)

HEALTH = "/grpc.health.v1.Health/"
"""Open to every peer."""
ALWAYS_ANSWERED = (HEALTH, "/grpc.reflection.", "/grpc.channelz.")
"""Methods that answer whatever the load, and during a drain."""
GENERATE = "/specmesh.v1.RouterService/Generate"
RESUME = ". The generation goes on by another request with what came as continuation_token_ids"
STATUS_SECONDS = 1.0
"""What a status gets to leave. It goes behind all that was written; where nobody reads, gRPC keeps it until the client
reads or goes, and nothing of the mesh waits for that.
"""

if TYPE_CHECKING:
    # Generic in their stubs only.
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]


class CallCounter:
    """Calls in flight, by whether they end by themselves; streams from clients last as long as their peers."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._calls = 0
        self._short_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = asyncio.Event()

    def enter(self, *, long_lived: bool) -> None:
        """Count a call in. Raises `Draining` or `Overloaded`."""
        if self.draining.is_set():
            raise Draining("this server is draining and takes no new calls")
        if self._calls >= self._limit:
            raise Overloaded(f"server.max_concurrent_calls: all {self._limit} calls are in use")
        self._calls += 1
        if not long_lived:
            self._short_calls += 1
            self._idle.clear()

    def leave(self, *, long_lived: bool) -> None:
        """Count a call out."""
        self._calls -= 1
        if not long_lived:
            self._short_calls -= 1
            if not self._short_calls:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Until no call that ends by itself is in flight."""
        await self._idle.wait()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler: checks the peer, counts the call, ends what nobody reads, maps what it raises."""

    def __init__(
        self, counter: CallCounter, access: Access, *, max_unread_seconds: float, max_message_bytes: int
    ) -> None:
        self._counter = counter
        self._access = access
        self._max_unread_seconds = max_unread_seconds
        self._max_message_bytes = max_message_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """The handler of the method, wrapped; None (UNIMPLEMENTED) stays None."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith(HEALTH):
            return handler
        if method.startswith(ALWAYS_ANSWERED) and not self._access.restricted:
            return handler
        return self._wrapped(handler, method)

    def _wrapped(self, handler: "Handler", method: str) -> "Handler":
        wrap = self._stream if handler.response_streaming else self._single
        sides = handler.request_streaming, handler.response_streaming
        name = "_".join("stream" if streaming else "unary" for streaming in sides)
        long_lived = all(sides)
        changes = {name: wrap(getattr(handler, name), method, long_lived)}
        if handler.request_deserializer is not None:
            read = _sized(handler.request_deserializer, self._max_message_bytes)
            changes["request_deserializer"] = read if handler.request_streaming else _lenient(read)
        return handler._replace(**changes)  # type: ignore[attr-defined, no-any-return]

    @contextmanager
    def _admitted(self, method: str, context: "Context", *, long_lived: bool) -> Iterator[None]:
        """While a call lasts. Raises `NotAllowed`, `Draining` or `Overloaded`."""
        self._access.check(method, context.auth_context())
        if method.startswith(ALWAYS_ANSWERED):
            yield
            return
        self._counter.enter(long_lived=long_lived)
        try:
            yield
        finally:
            self._counter.leave(long_lived=long_lived)

    def _single(self, behaviour: Callable[..., Any], method: str, long_lived: bool) -> Callable[..., Any]:
        async def call(request: object, context: "Context") -> object:
            try:
                with self._admitted(method, context, long_lived=long_lived):
                    return await behaviour(_readable(request), context)
            except Exception as error:  # noqa: BLE001  the last stop before the wire: every failure gets a status
                await _abort(context, error, method)

        return call

    def _stream(self, behaviour: Callable[..., Any], method: str, long_lived: bool) -> Callable[..., Any]:
        async def call(request: object, context: "Context") -> None:
            try:
                with self._admitted(method, context, long_lived=long_lived):
                    answer = behaviour(_readable(request), context)
                    if inspect.iscoroutine(answer):  # a servicer that writes to the context itself
                        await answer
                        return
                    # Written, not yielded on: a call that is cancelled while it writes then ends here, in its own task.
                    advice = RESUME if method == GENERATE else ""
                    with WatchedWriter(context, self._max_unread_seconds, advice) as writer:
                        async with aclosing(answer) as responses:
                            async for response in responses:
                                await writer.write(response)
            except Exception as error:  # noqa: BLE001  the last stop before the wire: every failure gets a status
                if unread := _unread(error):
                    await _end_unread(context, unread, method)
                else:
                    await _abort(context, error, method)

        return call


NO_MESSAGE = "its bytes are no message of this method"


class _TooLarge(ValueError):
    """A message over the limit, though not so far over it that gRPC itself refuses to take it."""


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for a request that cannot be read: gRPC itself would call that a failure of the server."""

    why: str


def _sized(deserialize: Callable[[bytes], object], limit: int) -> Callable[[bytes], object]:
    def read(message: bytes) -> object:
        if len(message) > limit:
            size = f"{len(message)} bytes; server.max_message_bytes is {limit} here"
            raise _TooLarge(f"{size}: send less at a time")
        return deserialize(message)

    return read


def _lenient(deserialize: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def read(message: bytes) -> object:
        try:
            return deserialize(message)
        except (DecodeError, UnicodeDecodeError, _TooLarge) as error:
            return _Unreadable(_why_unreadable(error))

    return read


def _readable(request: object) -> object:
    """The request. Raises `InvalidValue` when it could not be read."""
    if isinstance(request, _Unreadable):
        raise InvalidValue("request", request.why)
    return request


def _why_unreadable(error: BaseException) -> str:
    return str(error) if isinstance(error, _TooLarge) else NO_MESSAGE


def _undecodable(error: BaseException) -> str:
    """Why a stream's next message could not be read; empty for another failure.

    What reads one stream beside other work fails in a group.
    """
    if isinstance(error, BaseExceptionGroup):
        reasons = [_undecodable(each) for each in error.exceptions]
        return reasons[0] if all(reasons) else ""
    return _why_unreadable(error) if isinstance(error, DecodeError | _TooLarge) else ""


def _unread(error: BaseException) -> NotRead | None:
    """That a client did not read; what writes one stream beside other work fails in a group."""
    if isinstance(error, BaseExceptionGroup):
        return next((unread for each in error.exceptions if (unread := _unread(each))), None)
    return error if isinstance(error, NotRead) else None


async def _end_unread(context: "Context", error: NotRead, method: str) -> None:
    _log.info("a client did not read its stream", extra={"method": method})
    with suppress(TimeoutError):
        await asyncio.wait_for(context.abort(error.status, error.message, error_metadata(error)), STATUS_SECONDS)


async def _abort(context: "Context", error: Exception, method: str) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if why := _undecodable(error):
        error = InvalidValue("request", why)
    if not isinstance(error, MeshError):
        _log.error("call failed", extra={"method": method}, exc_info=error)
        error = MeshError("internal error; the server's log has the rest")
    await context.abort(error.status, error.message, error_metadata(error))

"""Interceptors of asyncio servers and channels: a span and a duration for each call.

Streams from both sides last as long as their peers; what travels on them carries a context per message and is traced
there. A span ends however its call does: cancelled, out of time, failed.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from specmesh.runtime.telemetry.instruments import HistogramFamily, Registry
from specmesh.runtime.telemetry.names import CALL_DURATION, ERROR_TYPE, RPC_METHOD, RPC_STATUS, RPC_SYSTEM
from specmesh.runtime.telemetry.spans import Kind, Span, Tracer, current_span, enter_span

if TYPE_CHECKING:
    # Generic in their stubs only.
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]

TRACEPARENT = "traceparent"
OWN_PACKAGE = "/specmesh."
"""Health, reflection and channelz are not work."""
GRPC = "grpc"
Continuation = Callable[..., Awaitable[Any]]
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_SERVER_ERRORS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""What is a server's fault, by the conventions; to a client everything but OK is an error."""


class ServerTelemetry(grpc.aio.ServerInterceptor):
    """Goes before all other interceptors, so that it sees the status that leaves."""

    def __init__(self, tracer: Tracer | None, registry: Registry) -> None:
        self._tracer = tracer
        self._durations: HistogramFamily = registry.histogram(CALL_DURATION)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """The handler of the method, wrapped unless it serves a stream of both sides."""
        handler = await continuation(handler_call_details)
        details: Any = handler_call_details
        method: str = details.method
        if handler is None or not method.startswith(OWN_PACKAGE):
            return handler
        sides = handler.request_streaming, handler.response_streaming
        if all(sides):
            return handler
        name = "_".join("stream" if streaming else "unary" for streaming in sides)
        wrap = self._stream if handler.response_streaming else self._single
        traceparent = dict(details.invocation_metadata or ()).get(TRACEPARENT)
        behaviour = wrap(getattr(handler, name), method[1:], traceparent)
        return handler._replace(**{name: behaviour})  # type: ignore[attr-defined, no-any-return]

    def _single(self, behaviour: Callable[..., Any], method: str, traceparent: object) -> Callable[..., Any]:
        async def call(request: object, context: "Context") -> object:
            with self._observed(method, traceparent, context):
                return await behaviour(request, context)

        return call

    def _stream(self, behaviour: Callable[..., Any], method: str, traceparent: object) -> Callable[..., Any]:
        async def call(request: object, context: "Context") -> None:
            with self._observed(method, traceparent, context):
                answer = behaviour(request, context)
                if inspect.iscoroutine(answer):  # a servicer that writes to the context itself
                    await answer
                    return
                # Written, not yielded on: a call that is cancelled while it writes then ends here, in its own task.
                async with aclosing(answer) as responses:
                    async for response in responses:
                        await context.write(response)

        return call

    @contextmanager
    def _observed(self, method: str, traceparent: object, context: "Context") -> Iterator[None]:
        started = time.perf_counter()
        span = self._tracer.entry(method, traceparent) if self._tracer is not None else None
        if span is not None:
            span.attributes |= {RPC_SYSTEM: GRPC, RPC_METHOD: method}
            enter_span(span)
        code = grpc.StatusCode.OK
        try:
            yield
            code = _code_set(context) or code  # a status that still waits behind what nobody reads
        except BaseException as error:
            code = _code_of(error, context)
            raise
        finally:
            seconds = time.perf_counter() - started
            series = self._durations.of(GRPC, method, code.name)
            series.record(seconds)
            if span is not None:
                series.link(seconds, span.trace_id, span.span_id)
                _end(span, code, failed=code in _SERVER_ERRORS)


class _ClientSpans:
    """What the interceptors of channels share: a span under the current one, whose context goes along."""

    async def _call(self, continuation: Continuation, details: grpc.aio.ClientCallDetails, request: object) -> Any:  # noqa: ANN401  the call
        parent = current_span()
        if parent is None:
            return await continuation(details, request)
        name = details.method.decode() if isinstance(details.method, bytes) else details.method
        span = parent.child(name.lstrip("/"), Kind.CLIENT)
        span.attributes |= {RPC_SYSTEM: GRPC, RPC_METHOD: name.lstrip("/")}
        code = grpc.StatusCode.CANCELLED
        try:
            call = await continuation(_with_context(details, span), request)
            code = await _code_after(call)
            return call
        finally:
            _end(span, code, failed=code is not grpc.StatusCode.OK)


class UnaryUnaryTelemetry(_ClientSpans, grpc.aio.UnaryUnaryClientInterceptor):
    """Calls with one request and one response."""

    async def intercept_unary_unary(
        self, continuation: Continuation, client_call_details: grpc.aio.ClientCallDetails, request: object
    ) -> Any:  # noqa: ANN401  the call
        """Traced if the current call is."""
        return await self._call(continuation, client_call_details, request)


class StreamUnaryTelemetry(_ClientSpans, grpc.aio.StreamUnaryClientInterceptor):
    """Calls with several requests and one response."""

    async def intercept_stream_unary(
        self, continuation: Continuation, client_call_details: grpc.aio.ClientCallDetails, request_iterator: object
    ) -> Any:  # noqa: ANN401  the call
        """Traced if the current call is."""
        return await self._call(continuation, client_call_details, request_iterator)


def _with_context(details: grpc.aio.ClientCallDetails, span: Span) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    metadata.add(TRACEPARENT, span.traceparent)
    return details._replace(metadata=metadata)  # type: ignore[attr-defined, no-any-return]


async def _code_after(call: Any) -> grpc.StatusCode:  # noqa: ANN401  of whichever kind
    try:
        code: grpc.StatusCode = await call.code()
    except asyncio.CancelledError:
        call.cancel()
        raise
    return code


def _code_of(error: BaseException, context: "Context") -> grpc.StatusCode:
    """What a client learns of a call that ended so."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        left = context.time_remaining()
        return grpc.StatusCode.DEADLINE_EXCEEDED if left is not None and left <= 0 else grpc.StatusCode.CANCELLED
    found = _code_set(context)
    return grpc.StatusCode.UNKNOWN if found in (None, grpc.StatusCode.OK) else found


def _code_set(context: "Context") -> grpc.StatusCode | None:
    code = context.code()
    return code if isinstance(code, grpc.StatusCode) else _CODES.get(code)


def _end(span: Span, code: grpc.StatusCode, *, failed: bool) -> None:
    span.attributes[RPC_STATUS] = code.name
    if failed:
        span.fail(code.name)
    elif code is not grpc.StatusCode.OK:
        span.attributes[ERROR_TYPE] = code.name
    span.end()

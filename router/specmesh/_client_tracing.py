"""A client span for each call, with the application's own OpenTelemetry; nothing of it without a tracer."""

from typing import Any, Self

import grpc

from specmesh._client_results import SpecMeshError

TRACEPARENT = "traceparent"


class CallSpan:
    """A `with` around a call: the span ends with it, however it ends, with the status that the call had."""

    def __init__(self, tracer: Any, method: str) -> None:  # noqa: ANN401  opentelemetry.trace.Tracer, str or None
        """`method` is fully qualified: `package.Service/Method`."""
        self.metadata: list[tuple[str, str]] = []
        """Goes along with the call, so that the mesh continues the trace."""
        self.complete = False
        """All has come: whoever stops reading now has cancelled nothing."""
        self._span: Any = None
        if isinstance(tracer, str):
            self.metadata.append((TRACEPARENT, tracer))
        elif tracer is not None:
            self._begin(tracer, method)

    def _begin(self, tracer: Any, method: str) -> None:  # noqa: ANN401
        from opentelemetry.trace import SpanKind

        attributes = {"rpc.system.name": "grpc", "rpc.method": method}
        self._span = tracer.start_span(method, kind=SpanKind.CLIENT, attributes=attributes)
        context = self._span.get_span_context()
        if context.is_valid:
            ids = f"{context.trace_id:032x}-{context.span_id:016x}"
            self.metadata.append((TRACEPARENT, f"00-{ids}-{int(context.trace_flags):02x}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._span is None:
            return
        code = self._code(error)
        self._span.set_attribute("rpc.response.status_code", code)
        if code != grpc.StatusCode.OK.name:
            from opentelemetry.trace import StatusCode

            # No description: a message of an error could hold text.
            self._span.set_attribute("error.type", code)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    def _code(self, error: BaseException | None) -> str:
        if error is None or (self.complete and not isinstance(error, Exception)):
            return grpc.StatusCode.OK.name
        if isinstance(error, grpc.RpcError):
            code: grpc.StatusCode = error.code()
            return code.name
        if isinstance(error, SpecMeshError):
            return error.code.name
        # The reader went away, or was cancelled; anything else is the reader's own failure, which ends the call too.
        return grpc.StatusCode.CANCELLED.name

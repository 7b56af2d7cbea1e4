"""Spans and metrics to a collector by OTLP over gRPC, from a thread of its own. Needs `opentelemetry-proto`.

A collector that does not answer costs the service nothing: spans wait, up to a bound; then they are dropped, and
counted.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import Message

from specmesh.runtime.telemetry.config import TelemetryConfig
from specmesh.runtime.telemetry.instruments import CounterFamily, Family
from specmesh.runtime.telemetry.otlp_messages import metrics_request, spans_request
from specmesh.runtime.telemetry.spans import Span

_log = logging.getLogger(__name__)

EXPORT_SECONDS = 5.0
"""How long a collector may take for one export."""
MAX_BATCH = 512
TRACES = "traces"
METRICS = "metrics"
_METHODS = {
    TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}


class OtlpExporter:
    """`add` from anywhere; everything else happens in the thread that `start` begins."""

    def __init__(
        self,
        config: TelemetryConfig,
        resource: dict[str, str],
        *,
        collect: Callable[[], list[Family]],
        start_ns: int,
        dropped: CounterFamily,
    ) -> None:
        """`collect` gives the metrics as they are now; `start_ns` is when counting began."""
        self._config = config
        self._resource = resource
        self._collect = collect
        self._start_ns = start_ns
        self._dropped = {signal: dropped.of(signal) for signal in _METHODS}
        self._spans: deque[Span] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._reached: bool | None = None
        self._channel = _channel(config.otlp_endpoint or "")
        self._metadata = tuple((key.lower(), value.get_secret_value()) for key, value in config.otlp_headers.items())
        self._calls = {
            signal: self._channel.unary_unary(method, request_serializer=_bytes, response_deserializer=bytes)
            for signal, method in _METHODS.items()
        }
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def add(self, span: Span) -> None:
        """A span that has ended."""
        if len(self._spans) < self._config.max_spans:
            self._spans.append(span)
        else:
            self._drop(TRACES, 1)

    @property
    def num_waiting(self) -> int:
        """Spans that have not left yet."""
        return len(self._spans)

    def _drop(self, signal: str, number: int) -> None:
        with self._lock:  # the only series with two writers
            self._dropped[signal].add(number)

    def stop(self, seconds: float) -> None:
        """Send what there is, for `seconds` at most. Blocks."""
        self._stopping = True
        self._wake.set()
        self._thread.join(seconds)
        self._channel.close()
        self._thread.join(seconds)

    def _run(self) -> None:
        due = time.monotonic() + self._config.metrics_seconds
        while not self._stopping:
            self._wake.wait(min(self._config.spans_seconds, max(due - time.monotonic(), 0.0)))
            self._send_spans()
            if time.monotonic() >= due:
                due = time.monotonic() + self._config.metrics_seconds
                self._send_metrics()
        self._send_spans()  # what came while the last export was on its way
        self._send_metrics()
        self._drop(TRACES, len(self._spans))

    def _send_spans(self) -> None:
        while self._spans:
            batch = [self._spans[index] for index in range(min(MAX_BATCH, len(self._spans)))]
            code = self._send(TRACES, spans_request(batch, self._resource))
            if code in _TRANSIENT:
                break
            if code is not grpc.StatusCode.OK:
                self._drop(TRACES, len(batch))
            for _ in batch:
                self._spans.popleft()

    def _send_metrics(self) -> None:
        try:
            families = self._collect()
        except TimeoutError:  # the event loop has something else to do
            self._drop(METRICS, 1)
            return
        # Not sent again: the next report holds all that this one does.
        if self._send(METRICS, metrics_request(families, self._resource, self._start_ns)) is not grpc.StatusCode.OK:
            self._drop(METRICS, 1)

    def _send(self, signal: str, request: Message) -> grpc.StatusCode:
        code = grpc.StatusCode.OK
        try:
            self._calls[signal](request, timeout=EXPORT_SECONDS, metadata=self._metadata)
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
        except ValueError:  # the channel was closed: there is no time left
            return grpc.StatusCode.CANCELLED
        self._note(code)
        return code

    def _note(self, code: grpc.StatusCode) -> None:
        """Each change once: a collector that is away must not fill the log."""
        reached = code is grpc.StatusCode.OK
        if reached is not self._reached:
            self._reached = reached
            if reached:
                _log.info("telemetry reaches its collector")
            else:
                _log.warning("telemetry does not reach its collector", extra={"reason": code.name})


_TRANSIENT = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""As the protocol says."""


def _channel(endpoint: str) -> grpc.Channel:
    url = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    # The shortest pause is also what a connection may take to come about.
    options = [("grpc.max_reconnect_backoff_ms", 5_000), ("grpc.min_reconnect_backoff_ms", 5_000)]
    if url.scheme == "https":
        return grpc.secure_channel(url.netloc, grpc.ssl_channel_credentials(), options)
    return grpc.insecure_channel(url.netloc, options)


def _bytes(message: Message) -> bytes:
    content: bytes = message.SerializeToString()
    return content

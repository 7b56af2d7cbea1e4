"""A real OTLP receiver (rotel) before a sink that keeps what it forwards, and a real Prometheus."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from platform import machine
from typing import Any

import grpc
import pytest
from mesh_processes import Service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build" / "telemetry-tools"
WAIT_SECONDS = 30.0

needs_rotel = pytest.mark.skipif(
    (sys.platform, machine()) != ("linux", "x86_64"), reason="rotel is fetched for Linux on x86-64"
)
needs_prometheus = pytest.mark.skipif(
    not Path("/usr/bin/dpkg-deb").exists() or machine() != "x86_64", reason="Prometheus is taken from Debian's package"
)


def tool(name: str) -> str:
    """Path of a binary that `make test` has fetched."""
    if name == "rotel":
        [found] = TOOLS.glob("lib/python*/site-packages/rotel/rotel-agent")
        return str(found)
    assert (TOOLS / "bin" / name).exists(), f"{name} is missing: make build/telemetry-tools/.installed"
    return str(TOOLS / "bin" / name)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """For processes that tell nothing when they are ready."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class SpanSeen:
    """A span as it arrived behind rotel."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, Any]

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


class Sink:
    """Keeps all spans and the names of all metrics."""

    def __init__(self) -> None:
        self.spans: list[SpanSeen] = []
        self.metrics: dict[str, Any] = {}
        self._lock = threading.Lock()

    def traces(self) -> dict[str, list[SpanSeen]]:
        """Spans by trace id."""
        found: dict[str, list[SpanSeen]] = defaultdict(list)
        with self._lock:
            for span in self.spans:
                found[span.trace_id].append(span)
        return found

    def clear(self) -> None:
        with self._lock:
            self.spans.clear()


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            spans = [_seen(service, span) for scope in resource.scope_spans for span in scope.spans]
            with self._sink._lock:
                self._sink.spans += spans
        return trace_pb.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._sink.metrics[metric.name] = metric
        return metrics_pb.ExportMetricsServiceResponse()


def _seen(service: str, span: Any) -> SpanSeen:
    return SpanSeen(
        service=service,
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        failed=span.status.code == 2,
        attributes=_attributes(span.attributes),
    )


@dataclass(frozen=True)
class Collector:
    """Where services send to, and what has arrived behind it."""

    endpoint: str
    sink: Sink


@contextmanager
def collector(folder: Path) -> Iterator[Collector]:
    """rotel, told to forward everything to a sink in this process."""
    sink = Sink()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(sink), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(sink), server)
    behind, grpc_port, http_port = server.add_insecure_port("127.0.0.1:0"), free_port(), free_port()
    server.start()
    command = [tool("rotel"), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{http_port}", "--exporter", "otlp", "--batch-timeout", "100ms"]
    command += ["--otlp-exporter-endpoint", f"http://127.0.0.1:{behind}", "--otlp-exporter-protocol", "grpc"]
    command += ["--pid-file", str(folder / "rotel.pid"), "--log-file", str(folder / "rotel.log")]
    with (folder / "rotel.out").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            wait_until(lambda: _listens(grpc_port) or process.poll() is not None, "rotel listens")
            assert process.poll() is None, (folder / "rotel.out").read_text()
            yield Collector(f"http://127.0.0.1:{grpc_port}", sink)
        finally:
            process.kill()
            process.wait()
            server.stop(None).wait()


@dataclass
class Watched:
    """What runs, and who watches."""

    verifier: Service
    draft: Service
    router: Service
    ports: dict[str, int]
    """Of metrics, by service."""
    collector: Collector

    def logs(self) -> str:
        return "".join(service.log() for service in (self.verifier, self.draft, self.router))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    address: str

    def _get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]

    def query(self, expression: str) -> list[Any]:
        """Series that an expression has now."""
        try:
            result: list[Any] = self._get("/api/v1/query", query=expression)["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        return result

    def rules(self) -> dict[str, Any]:
        """Alerts that it has loaded, by name."""
        groups = self._get("/api/v1/rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def all_up(self) -> bool:
        try:
            targets = self._get("/api/v1/targets", state="active")["activeTargets"]
        except OSError:
            return False
        return bool(targets) and all(target["health"] == "up" for target in targets)


@contextmanager
def prometheus(folder: Path, targets: Sequence[str], rules: Path) -> Iterator[Prometheus]:
    """Scrapes `targets` every half second."""
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "specmesh", "static_configs": [{"targets": list(targets)}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    command = [tool("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", "--log.level=error"]
    with (folder / "prometheus.out").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            running = Prometheus(address)
            wait_until(lambda: running.all_up() or process.poll() is not None, "every target is scraped")
            assert process.poll() is None, (folder / "prometheus.out").read_text()
            yield running
        finally:
            process.kill()
            process.wait()


def scrape(port: int) -> str:
    """What a service answers to Prometheus."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text

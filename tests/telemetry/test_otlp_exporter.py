"""The exporter's thread, and its end: a collector that does not answer must not hold a process."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from specmesh.runtime.telemetry.config import TelemetryConfig
from specmesh.runtime.telemetry.instruments import Point, Registry
from specmesh.runtime.telemetry.names import TELEMETRY_DROPPED
from specmesh.runtime.telemetry.otlp import EXPORT_SECONDS, OtlpExporter
from specmesh.runtime.telemetry.spans import Tracer

STOP_SECONDS = 0.3


class Silence(grpc.GenericRpcHandler):
    """Takes calls, says so, and never answers before its end."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.over = threading.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, context: Any) -> bytes:
        self.called.set()
        self.over.wait()
        return b""


@pytest.fixture
def silence() -> Iterator[tuple[str, Silence]]:
    handler = Silence()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}", handler
    handler.over.set()
    server.stop(None).wait()


def exporter_to(endpoint: str, registry: Registry) -> OtlpExporter:
    return OtlpExporter(
        TelemetryConfig(otlp_endpoint=endpoint, spans_seconds=0.01),
        {"service.name": "test"},
        collect=registry.collect,
        start_ns=registry.start_ns,
        dropped=registry.counter(TELEMETRY_DROPPED),
    )


def num_dropped(registry: Registry, signal: str) -> float:
    [family] = [family for family in registry.collect() if family.metric is TELEMETRY_DROPPED]
    return sum(point.value for point in family.points if isinstance(point, Point) and point.values == (signal,))


def test_stopping_cuts_off_an_export_that_nobody_answers(silence: tuple[str, Silence]) -> None:
    """In well under the time that one export may take, with its thread gone and what was left counted."""
    endpoint, collector = silence
    registry = Registry()
    exporter = exporter_to(endpoint, registry)
    tracer = Tracer(exporter.add, 1.0)
    before = set(threading.enumerate())
    exporter.start()
    [thread] = set(threading.enumerate()) - before
    span = tracer.entry("call", None)
    assert span is not None
    span.end()
    assert collector.called.wait(10), "the span is on its way"
    stopping = threading.Thread(target=exporter.stop, args=(STOP_SECONDS,), daemon=True)
    began = time.monotonic()
    stopping.start()
    stopping.join(EXPORT_SECONDS - 1)
    assert not stopping.is_alive(), "it waits for an answer"
    assert time.monotonic() - began < EXPORT_SECONDS - 1
    assert not thread.is_alive(), "its thread goes on"
    assert num_dropped(registry, "traces") == 1
    assert num_dropped(registry, "metrics") == 1


def test_stopping_at_once_still_sends_what_there_is() -> None:
    """With nobody there at all it is over as soon as the connection is refused, or the time is up."""
    registry = Registry()
    exporter = exporter_to("http://127.0.0.1:1", registry)
    exporter.start()
    span = Tracer(exporter.add, 1.0).entry("call", None)
    assert span is not None
    span.end()
    began = time.monotonic()
    exporter.stop(STOP_SECONDS)
    assert time.monotonic() - began < 3 * STOP_SECONDS + 1
    assert exporter.num_waiting == num_dropped(registry, "traces") == 1

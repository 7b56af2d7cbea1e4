"""Telemetry of one service, from its configuration. Off by default, and then nothing of it is imported or recorded."""

import asyncio
import importlib.util
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc.aio

from specmesh.runtime.build import build_version
from specmesh.runtime.config import ConfigError
from specmesh.runtime.given import KeyFault
from specmesh.runtime.telemetry.config import TelemetryConfig
from specmesh.runtime.telemetry.instruments import Family, Registry
from specmesh.runtime.telemetry.interceptors import ServerTelemetry, StreamUnaryTelemetry, UnaryUnaryTelemetry
from specmesh.runtime.telemetry.names import TELEMETRY_DROPPED
from specmesh.runtime.telemetry.spans import Tracer

if TYPE_CHECKING:
    from specmesh.runtime.telemetry.otlp import OtlpExporter
    from specmesh.runtime.telemetry.prometheus import PrometheusPort

_log = logging.getLogger(__name__)

COLLECT_SECONDS = 5.0
"""How long an event loop may be busy before it is asked in vain."""
STOP_SECONDS = 2.0
"""What a dead collector may take of a service's end."""


class Telemetry:
    """What a service records to. `registry` and `tracer` are None when there is nobody to tell."""

    def __init__(self, registry: Registry | None = None, tracer: Tracer | None = None) -> None:
        self.registry = registry
        self.tracer = tracer

    def server_interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """To go before all others of a server."""
        return [ServerTelemetry(self.tracer, self.registry)] if self.registry is not None else []

    def client_interceptors(self) -> list[grpc.aio.ClientInterceptor]:
        """For channels whose calls belong to the current span."""
        return [UnaryUnaryTelemetry(), StreamUnaryTelemetry()] if self.tracer is not None else []


NO_TELEMETRY = Telemetry()


@asynccontextmanager
async def open_telemetry(service: str, config: TelemetryConfig) -> AsyncIterator[Telemetry]:
    """While a service runs. Raises `ConfigError` when a package is missing or the port cannot be had."""
    if not config.enabled:
        yield NO_TELEMETRY
        return
    check_packages(config)
    registry = Registry()
    dropped = registry.counter(TELEMETRY_DROPPED)
    resource = _resource(service)
    collect = on_loop(asyncio.get_running_loop(), registry.collect)
    port = _open_port(config, collect, resource)
    keeping_up = asyncio.create_task(registry.keep_up())
    exporter = None
    try:
        if config.otlp_endpoint is not None:
            from specmesh.runtime.telemetry.otlp import METRICS, TRACES, OtlpExporter

            for signal in (TRACES, METRICS):
                dropped.of(signal)
            exporter = OtlpExporter(config, resource, collect=collect, start_ns=registry.start_ns, dropped=dropped)
            exporter.start()
        tracer = Tracer(exporter.add, config.sample_ratio) if exporter is not None else None
        yield Telemetry(registry, tracer)
    finally:
        # A thread of its own, so that `collect` still finds the event loop turning.
        try:
            await asyncio.to_thread(_close, exporter, port)
        finally:
            keeping_up.cancel()
            await asyncio.wait([keeping_up])


def _close(exporter: "OtlpExporter | None", port: "PrometheusPort | None") -> None:
    if exporter is not None:
        exporter.stop(STOP_SECONDS)
    if port is not None:
        port.stop()


def _open_port(
    config: TelemetryConfig, collect: Callable[[], list[Family]], resource: dict[str, str]
) -> "PrometheusPort | None":
    if config.prometheus_port is None:
        return None
    from specmesh.runtime.telemetry.prometheus import PrometheusPort

    port = PrometheusPort(config.prometheus_host, config.prometheus_port, collect=collect, resource=resource)
    _log.info("metrics for Prometheus", extra={"port": port.port})
    return port


def check_packages(config: TelemetryConfig) -> None:
    """Raises `ConfigError` for the setting whose packages are missing."""
    if config.prometheus_port is not None:
        _require("prometheus_client", "telemetry.prometheus_port")
    if config.otlp_endpoint is not None:
        _require("opentelemetry.proto", "telemetry.otlp_endpoint")


def _require(module: str, setting: str) -> None:
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise ConfigError(KeyFault(setting, "needs packages that are not installed: pip install 'specmesh[otel]'"))


def on_loop(loop: asyncio.AbstractEventLoop, collect: Callable[[], list[Family]]) -> Callable[[], list[Family]]:
    """`collect`, for other threads: it looks at what the event loop owns. Raises `TimeoutError`."""

    async def call() -> list[Family]:
        return collect()

    def ask() -> list[Family]:
        return asyncio.run_coroutine_threadsafe(call(), loop).result(COLLECT_SECONDS)

    return ask


def _resource(service: str) -> dict[str, str]:
    return {
        "service.namespace": "specmesh",
        "service.name": f"specmesh-{service}",
        "service.version": build_version(),
        "service.instance.id": str(uuid.uuid4()),
    }

"""A server of the mesh: limits, keepalive, health, reflection, rich errors and a drain that loses nothing."""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from specmesh.runtime.access import Access
from specmesh.runtime.calls import CallCounter, CallInterceptor
from specmesh.runtime.config import ConfigError, ServerConfig
from specmesh.runtime.streams import PING_TIMEOUT_MS
from specmesh.runtime.telemetry.setup import NO_TELEMETRY, Telemetry
from specmesh.runtime.tls import server_credentials

_log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LIVENESS = "live"
"""Health of the process itself: SERVING while its event loop turns, also during a load and a drain."""
REFUSED_IN_WORDS = 2
"""A message of up to so many times the limit is taken in, and refused by words that name the limit; gRPC itself resets
whoever sends more, in words of its own.
"""
CLOSING_SECONDS = 0.5
"""What streams get to end by themselves once all work is done."""


class MeshServer:
    """A grpc.aio server. Create it inside the running event loop, add servicers to `grpc`, then `start`."""

    def __init__(self, config: ServerConfig, service_names: Sequence[str], telemetry: Telemetry = NO_TELEMETRY) -> None:
        """`service_names` are full names (`specmesh.v1.DraftService`), for health and reflection."""
        self._config = config
        self._names = tuple(service_names)
        self._counter = CallCounter(config.max_concurrent_calls)
        self._health = health.aio.HealthServicer()
        self._stop_asked = asyncio.Event()
        self._signals = _StopSignals(self._stop_asked)
        self._becoming_ready: asyncio.Future[None] | None = None
        self.address = ""
        self.draining = self._counter.draining
        self.health_address = ""
        """Of the plaintext port for probes, if there is one."""
        access = _access(config, self._names)
        interceptors = [
            *telemetry.server_interceptors(),
            CallInterceptor(
                self._counter,
                access,
                max_unread_seconds=config.max_unread_seconds,
                max_message_bytes=config.max_message_bytes,
            ),
        ]
        self.grpc: grpc.aio.Server = grpc.aio.server(interceptors=interceptors, options=_options(config))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        self._probes: grpc.aio.Server | None = None
        if config.health_port is not None:
            self._probes = grpc.aio.server(options=_options(config))
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._probes)
        if config.reflection:
            _add_reflection(self.grpc, self._names)
        if config.channelz:
            _add_channelz(self.grpc)

    async def start(self) -> int:
        """Listen; health says NOT_SERVING until `set_serving`. Returns the port. Raises `ConfigError`."""
        self._signals.end_as_others_do()
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        port = self._bind()
        self.address = f"{self._config.host}:{port}"
        if self._probes is not None:
            self.health_address = f"{self._config.host}:{self._bind_probes(self._probes)}"
            await self._probes.start()
        await self.grpc.start()
        return port

    def _bind(self) -> int:
        address = f"{self._config.host}:{self._config.port}"
        try:
            if self._config.tls is None:
                return self.grpc.add_insecure_port(address)
            return self.grpc.add_secure_port(address, server_credentials(self._config.tls))
        except RuntimeError:
            raise ConfigError(
                f"server.port: cannot listen on {address}; is it in use? (server.port = 0 picks a free port)"
            ) from None

    def _bind_probes(self, probes: grpc.aio.Server) -> int:
        address = f"{self._config.host}:{self._config.health_port}"
        try:
            return probes.add_insecure_port(address)
        except RuntimeError:
            raise ConfigError(f"server.health_port: cannot listen on {address}; is it in use?") from None

    def set_serving(self) -> None:
        """The model is loaded: health says SERVING from the loop's next turn on, and a signal means to drain."""
        self._signals.listen()
        self._becoming_ready = asyncio.ensure_future(self._set_health(health_pb2.HealthCheckResponse.SERVING))

    async def serve_until_signalled(self, on_drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve until SIGTERM or SIGINT, then drain and stop.

        Drain: NOT_SERVING, new calls get UNAVAILABLE, calls in flight finish, then `on_drain` (what else must end,
        such as sessions on a peer's stream). All within `drain_seconds`; a second signal cuts it short.
        """
        await self._stop_asked.wait()
        self._stop_asked.clear()
        await self.drain(on_drain)

    async def drain(self, on_drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Take no new work, finish what is in flight, stop."""
        _log.info("draining", extra={"drain_seconds": self._config.drain_seconds})
        self.draining.set()
        if self._becoming_ready is not None:
            await self._becoming_ready
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        finishing = asyncio.ensure_future(self._finish(on_drain))
        cut_short = asyncio.ensure_future(self._stop_asked.wait())
        timeout = self._config.drain_seconds
        await asyncio.wait({finishing, cut_short}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if finishing.done():
            finishing.result()
        else:
            _log.warning("work was left at the end of the drain time")
        finishing.cancel()
        cut_short.cancel()
        await self.stop(CLOSING_SECONDS)

    async def _finish(self, on_drain: Callable[[], Awaitable[None]] | None) -> None:
        at_least = asyncio.create_task(asyncio.sleep(self._config.min_drain_seconds))
        try:
            await self._counter.wait_idle()
            if on_drain is not None:
                await on_drain()
            await at_least
        finally:
            at_least.cancel()

    async def stop(self, grace: float) -> None:
        """Stop; calls still open after `grace` seconds are cancelled."""
        await self.grpc.stop(grace)
        if self._probes is not None:  # last: probes learn of the drain as long as there is one
            await self._probes.stop(0)
        self._signals.restore()

    async def _set_health(self, status: int) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)


def announce_ready(address: str) -> None:
    """The one line on standard output by which a parent process learns the address."""
    sys.stdout.write(json.dumps({"event": "ready", "address": address}) + "\n")
    sys.stdout.flush()


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    # No max_connection_age: it kills long-lived streams. No port sharing: a second server on the port is an error.
    return [
        ("grpc.max_receive_message_length", REFUSED_IN_WORDS * config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.keepalive_time_ms", round(config.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", round(config.min_ping_interval_seconds * 1000)),
        ("grpc.so_reuseport", 0),
    ]


def check_server(config: ServerConfig, service_names: Sequence[str]) -> None:
    """What can be known before anything listens. Raises `ConfigError`."""
    _access(config, service_names)
    if config.tls is not None:
        server_credentials(config.tls)


def _access(config: ServerConfig, service_names: Sequence[str]) -> Access:
    return Access(config.allow, (*service_names, *_debugging_services(config)))


def _debugging_services(config: ServerConfig) -> list[str]:
    reflection = ["grpc.reflection.v1alpha.ServerReflection"] if config.reflection else []
    return [*reflection, "grpc.channelz.v1.Channelz"] if config.channelz else reflection


def _add_reflection(server: grpc.aio.Server, names: tuple[str, ...]) -> None:
    from grpc_reflection.v1alpha import reflection

    reflection.enable_server_reflection((*names, "grpc.health.v1.Health", reflection.SERVICE_NAME), server)


def _add_channelz(server: grpc.aio.Server) -> None:
    from grpc_channelz.v1 import channelz

    channelz.add_channelz_servicer(server)


class _StopSignals:
    """Sets an event on SIGTERM and SIGINT; elsewhere than in the main thread there is nothing to listen to."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self._loop = asyncio.get_running_loop()
        self._before: dict[int, object] = {}

    def end_as_others_do(self) -> None:
        """The first process of a container ignores a SIGTERM that it does not handle; while it loads, this one ends."""
        if os.getpid() == 1 and _in_main_thread():
            signal.signal(signal.SIGTERM, _end)

    def listen(self) -> None:
        """From now on; before, while a model loads, a signal ends the process at once."""
        if not self._before and _in_main_thread():
            # signal.signal and not loop.add_signal_handler, which Windows does not have.
            self._before = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    def restore(self) -> None:
        """As it was before `listen`."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _end(number: int, frame: FrameType | None) -> None:
    # Not sys.exit: the thread that loads the model would be waited for.
    os._exit(128 + number)

"""A mesh of table models in this process, whose telemetry is switched on and off between requests.

Three services over real gRPC on one event loop: the CPU time of their steps is this process's own. With telemetry off
a request goes through the same objects, connections and threads as with telemetry on, but through none of its code; so
the two differ in nothing else, such as where in memory things happen to lie.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from step_overhead import mesh_config

from specmesh.draft.block import Ended, Failed
from specmesh.draft.config import DraftConfig
from specmesh.draft.drafter import make_drafter
from specmesh.draft.engine import DraftEngine
from specmesh.draft.metrics import BlockMetrics, BlockWatch, NoBlockWatch
from specmesh.draft.runner import InlineRunner
from specmesh.draft.service import DraftServicer
from specmesh.router.__main__ import Router
from specmesh.router.config import RouterConfig
from specmesh.router.session import Session
from specmesh.router.watching import NO_WATCH, Watch, WatchedRequest, WatchedStep
from specmesh.runtime.config import ServerConfig
from specmesh.runtime.contract import DRAFT_SERVICE, ROUTER_SERVICE, VERIFIER_SERVICE
from specmesh.runtime.serving import MeshServer
from specmesh.runtime.telemetry.instruments import Registry
from specmesh.runtime.telemetry.setup import Telemetry
from specmesh.runtime.telemetry.spans import Tracer
from specmesh.v1.draft_service_pb2_grpc import add_DraftServiceServicer_to_server
from specmesh.v1.router_service_pb2_grpc import add_RouterServiceServicer_to_server
from specmesh.v1.verifier_service_pb2_grpc import add_VerifierServiceServicer_to_server
from specmesh.verifier.backend import Backend, Verified, Work
from specmesh.verifier.config import VerifierConfig
from specmesh.verifier.engine import Engine
from specmesh.verifier.loading import load
from specmesh.verifier.metrics import MeasuredBackend, observe_engine
from specmesh.verifier.service import Served, VerifierService


@dataclass
class Switch:
    """Whether there is telemetry at the moment."""

    on: bool = False


class SwitchedTelemetry(Telemetry):
    """That of all three services."""

    def __init__(self, registry: Registry, tracer: Tracer, switch: Switch) -> None:
        super().__init__(registry, tracer)
        self.measured = registry
        self.switch = switch

    def server_interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """Passed by when there is none."""
        return [SwitchedInterceptor(inner, self.switch) for inner in super().server_interceptors()]


class SwitchedInterceptor(grpc.aio.ServerInterceptor):
    """Another one, or nothing."""

    def __init__(self, inner: grpc.aio.ServerInterceptor, switch: Switch) -> None:
        self._inner = inner
        self._switch = switch

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401  generic in the stubs only
        """The handler."""
        if self._switch.on:
            return await self._inner.intercept_service(continuation, handler_call_details)
        return await continuation(handler_call_details)


class SwitchedChannel:
    """Two channels to one peer, with interceptors and without; streams of both sides have none."""

    def __init__(self, watched: grpc.aio.Channel, bare: grpc.aio.Channel, switch: Switch) -> None:
        self._watched: Any = watched
        self._bare: Any = bare
        self._switch = switch
        self.stream_stream = bare.stream_stream
        self.unary_stream = bare.unary_stream

    def unary_unary(self, *args: object, **options: object) -> Callable[..., Any]:
        """As of a channel."""
        return self._either(self._watched.unary_unary(*args, **options), self._bare.unary_unary(*args, **options))

    def stream_unary(self, *args: object, **options: object) -> Callable[..., Any]:
        """As of a channel."""
        return self._either(self._watched.stream_unary(*args, **options), self._bare.stream_unary(*args, **options))

    def _either(self, watched: Callable[..., Any], bare: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: (watched if self._switch.on else bare)(*args, **options)

    async def __aenter__(self) -> "SwitchedChannel":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._watched.close()
        await self._bare.close()


class SwitchedWatch:
    """A router's watch, or none."""

    def __init__(self, watch: Watch, switch: Switch) -> None:
        self._watch = watch
        self._switch = switch

    def request(self, operation: str) -> WatchedRequest:
        """A request has arrived."""
        return (self._watch if self._switch.on else NO_WATCH).request(operation)

    def step(self, session: Session) -> WatchedStep:
        """A session takes a step."""
        return (self._watch if self._switch.on else NO_WATCH).step(session)


class SwitchedRouter(Router):
    """A router whose interceptors and watch are switched."""

    def __init__(self, config: RouterConfig, telemetry: SwitchedTelemetry) -> None:
        self._switch = telemetry.switch
        super().__init__(config, telemetry)
        mesh = self.servicer._mesh
        self.servicer._mesh = replace(mesh, watch=SwitchedWatch(mesh.watch, self._switch))

    def _connect(self, address: str, server_name: str | None = None) -> grpc.aio.Channel:
        watched = super()._connect(address, server_name)
        interceptors, self._interceptors = self._interceptors, []
        bare = super()._connect(address, server_name)
        self._interceptors = interceptors
        channel: Any = SwitchedChannel(watched, bare, self._switch)
        return channel  # type: ignore[no-any-return]


class SwitchedBlockWatch:
    """A draft's watch, or none."""

    def __init__(self, watch: BlockWatch, switch: Switch) -> None:
        self._watch, self._none = watch, NoBlockWatch()
        self._switch = switch

    def ended(self, block: Ended) -> None:
        """A block is complete."""
        (self._watch if self._switch.on else self._none).ended(block)

    def failed(self, failure: Failed) -> None:
        """An entry has failed."""
        (self._watch if self._switch.on else self._none).failed(failure)


class SwitchedBackend(MeasuredBackend):
    """A verifier's backend, measured or not."""

    def __init__(self, backend: Backend, telemetry: SwitchedTelemetry) -> None:
        super().__init__(backend, telemetry.measured)
        self._switch = telemetry.switch

    def verify(self, batch: Sequence[Work]) -> Verified:
        """One forward pass and the verification of its blocks."""
        return super().verify(batch) if self._switch.on else self._backend.verify(batch)


@asynccontextmanager
async def switched_mesh(
    target: Path, draft: Path, telemetry: SwitchedTelemetry, router: dict[str, Any]
) -> AsyncIterator[str]:
    """The mesh of `step_overhead`, at the address of its router, whose settings `router` overrides."""
    config = mesh_config(target, draft, 0.0)
    async with (
        _verifier(VerifierConfig.model_validate(config.verifier), telemetry) as verifier,
        _draft(DraftConfig.model_validate(config.drafts[0].settings), telemetry) as drafts,
    ):
        pools = [{"name": "table", "addresses": [drafts]}]
        settings = config.router | {"verifiers": [verifier], "pools": pools} | router
        async with _router(RouterConfig.model_validate(settings), telemetry) as address:
            yield address


@asynccontextmanager
async def _verifier(config: VerifierConfig, telemetry: SwitchedTelemetry) -> AsyncIterator[str]:
    server = MeshServer(ServerConfig(), [VERIFIER_SERVICE], telemetry)
    service = VerifierService(config.limits, server.draining, telemetry.tracer)
    add_VerifierServiceServicer_to_server(service, server.grpc)  # type: ignore[no-untyped-call]
    await server.start()
    loaded = load(config)
    engine = Engine(SwitchedBackend(loaded.backend, telemetry), config.engine)
    engine.start()
    observe_engine(telemetry.measured, engine, loaded.info)
    service.serve(Served(engine, loaded.info, loaded.tokenizer))
    try:
        yield server.address
    finally:
        await server.stop(0)
        await engine.stop()


@asynccontextmanager
async def _draft(config: DraftConfig, telemetry: SwitchedTelemetry) -> AsyncIterator[str]:
    server = MeshServer(ServerConfig(), [DRAFT_SERVICE], telemetry)
    watch = SwitchedBlockWatch(BlockMetrics(telemetry.measured), telemetry.switch)
    unread = config.server.max_unread_seconds
    servicer = DraftServicer(time.monotonic, watch, telemetry.tracer, max_unread_seconds=unread)
    add_DraftServiceServicer_to_server(servicer, server.grpc)  # type: ignore[no-untyped-call]
    await server.start()
    drafter = make_drafter(config.kind, config.drafter)
    runner = InlineRunner(DraftEngine(drafter, config.limits, config.stopping, time.monotonic))
    servicer.attach(runner, drafter.info, config.limits.max_block_length)
    try:
        yield server.address
    finally:
        await server.stop(0)
        await runner.stop()


@asynccontextmanager
async def _router(config: RouterConfig, telemetry: SwitchedTelemetry) -> AsyncIterator[str]:
    router = SwitchedRouter(config, telemetry)
    server = MeshServer(ServerConfig(), [ROUTER_SERVICE], telemetry)
    add_RouterServiceServicer_to_server(router.servicer, server.grpc)  # type: ignore[no-untyped-call]
    await server.start()
    tasks = [asyncio.create_task(router.verifiers.run()), asyncio.create_task(router.drafts.run())]
    try:
        yield server.address
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop(0)

"""A router in this process whose spans and metrics a test can look at, beside scripted drafts and verifiers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from mesh_calls import Generation, generate, request, router_at, wait_ready
from router_fakes import FakeDraft, FakeVerifier, Send, drafted, ended, quick_config, scripted_info, serving, until

from specmesh.router.__main__ import Router
from specmesh.router.config import PoolConfig
from specmesh.runtime.config import ServerConfig
from specmesh.runtime.contract import ROUTER_SERVICE
from specmesh.runtime.serving import MeshServer
from specmesh.runtime.telemetry.instruments import Registry
from specmesh.runtime.telemetry.setup import NO_TELEMETRY, Telemetry
from specmesh.runtime.telemetry.spans import Span, Tracer
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1.router_service_pb2_grpc import add_RouterServiceServicer_to_server

SAMPLED = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
CALLER = 0xB7AD6B7169203331
"""The span that SAMPLED names."""
GENERATE = "specmesh.v1.RouterService/Generate"
COMPUTE_NS = 50_000_000
"""Longer than any step of these tests takes."""
INFO = scripted_info(4096)
DRAFT_INFO = replace(INFO, model_digest="d" * 64)


async def there_already(entry: draft_pb.DraftRequestEntry, send: Send) -> None:
    """A block that was drafted for 50 ms before anybody asked for it."""
    if entry.block_length:
        await send(drafted(entry, 0, *range(10, 10 + entry.block_length)))
    source = draft_pb.CONTEXT_SOURCE_PREDICTED
    await send(ended(entry, queue_ns=0, compute_ns=COMPUTE_NS, batch_size=1, context_source=source))


class Traced:
    """A router in this process, its spans and its metrics."""

    def __init__(self, address: str, spans: list[Span], registry: Registry) -> None:
        self.address = address
        self.spans = spans
        self.registry = registry

    async def generate(self, **fields: Any) -> Generation:
        """One traced request, once all its spans have ended."""
        before = len(self.named(GENERATE))
        async with router_at(self.address) as stub:
            await wait_ready(stub, "good")
            generation = await generate(stub, request(**fields), metadata=SAMPLED)
        await until(lambda: len(self.named(GENERATE)) > before)
        return generation

    def named(self, name: str) -> list[Span]:
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start_ns)


@asynccontextmanager
async def traced_router(draft: FakeDraft, *verifiers: FakeVerifier, watched: bool = True) -> AsyncIterator[Traced]:
    """`watched`: otherwise it has no telemetry at all."""
    spans: list[Span] = []
    registry = Registry()
    telemetry = Telemetry(registry, Tracer(spans.append, 0.0)) if watched else NO_TELEMETRY
    async with serving(draft, *verifiers) as (drafts, *targets):
        pools = [PoolConfig(name="good", addresses=(drafts.address,))]
        policy = {"name": "fixed", "settings": {"fixed_length": 4}}
        router = Router(quick_config([each.address for each in targets], pools, policy=policy), telemetry)
        server = MeshServer(ServerConfig(), [ROUTER_SERVICE], telemetry)
        add_RouterServiceServicer_to_server(router.servicer, server.grpc)
        await server.start()
        tasks = [asyncio.create_task(router.verifiers.run()), asyncio.create_task(router.drafts.run())]
        try:
            await until(lambda: sum(each.connected for each in router.verifiers.replicas()) == len(targets))
            yield Traced(server.address, spans, registry)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop(0)

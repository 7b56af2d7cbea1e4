"""A server of the mesh whose handlers run what a test gives them, one method of every kind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import grpc.aio

from specmesh.runtime.config import ServerConfig
from specmesh.runtime.serving import MeshServer
from specmesh.runtime.telemetry.setup import NO_TELEMETRY, Telemetry
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import draft_service_pb2_grpc as draft_grpc
from specmesh.v1 import router_service_pb2 as router_pb
from specmesh.v1 import router_service_pb2_grpc as router_grpc

DRAFT_NAME = "specmesh.v1.DraftService"
ROUTER_NAME = "specmesh.v1.RouterService"


async def nothing() -> None:
    """A handler's part that does nothing."""


@dataclass
class Script:
    """What every handler awaits: first thing, and before each further message of a stream."""

    on_call: Callable[[], Awaitable[None]] = nothing
    on_message: Callable[[], Awaitable[None]] = nothing
    started: asyncio.Event = field(default_factory=asyncio.Event)
    text: str = ""
    """Of each delta."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """A stream has ended."""


class ScriptedDraft(draft_grpc.DraftServiceServicer):
    """Unary, client-stream and bidi."""

    def __init__(self, script: Script) -> None:
        self.script = script

    async def GetInfo(self, request, context) -> draft_pb.DraftServiceGetInfoResponse:  # noqa: ANN001, N802
        self.script.started.set()
        await self.script.on_call()
        return draft_pb.DraftServiceGetInfoResponse()

    async def Open(self, request_iterator, context) -> draft_pb.DraftServiceOpenResponse:  # noqa: ANN001, N802
        count = 0
        await self.script.on_call()
        async for _ in request_iterator:
            count += 1
        return draft_pb.DraftServiceOpenResponse(have_length=count)

    async def Draft(self, request_iterator, context) -> AsyncIterator[draft_pb.DraftResponse]:  # noqa: ANN001, N802
        self.script.started.set()
        await self.script.on_call()
        async for _ in request_iterator:
            yield draft_pb.DraftResponse()
            await self.script.on_message()


class ScriptedRouter(router_grpc.RouterServiceServicer):
    """Server-stream: as many deltas as the request's max_output_tokens."""

    def __init__(self, script: Script) -> None:
        self.script = script

    async def Generate(self, request, context) -> AsyncIterator[router_pb.GenerateResponse]:  # noqa: ANN001, N802
        await self.script.on_call()
        try:
            for index in range(request.stop.max_output_tokens):
                yield router_pb.GenerateResponse(
                    delta=router_pb.OutputDelta(output_offset=index, text=self.script.text)
                )
                self.script.started.set()
                await self.script.on_message()
        finally:
            self.script.ended.set()


@asynccontextmanager
async def scripted_server(
    script: Script, config: ServerConfig | None = None, telemetry: Telemetry = NO_TELEMETRY
) -> AsyncIterator[MeshServer]:
    """A started, serving server."""
    server = MeshServer(config or ServerConfig(), [DRAFT_NAME, ROUTER_NAME], telemetry)
    draft_grpc.add_DraftServiceServicer_to_server(ScriptedDraft(script), server.grpc)
    router_grpc.add_RouterServiceServicer_to_server(ScriptedRouter(script), server.grpc)
    await server.start()
    server.set_serving()
    try:
        yield server
    finally:
        await server.stop(0)


async def one_request() -> AsyncIterator[draft_pb.DraftRequest]:
    """A client's half of a bidi stream: one message, then the end."""
    yield draft_pb.DraftRequest()


async def call_every_kind(channel: grpc.aio.Channel) -> dict[str, grpc.aio.AioRpcError | None]:
    """One call of each kind; the failure of each, or None."""
    draft, router = draft_grpc.DraftServiceStub(channel), router_grpc.RouterServiceStub(channel)

    async def unary() -> None:
        await draft.GetInfo(draft_pb.DraftServiceGetInfoRequest())

    async def client_stream() -> None:
        await draft.Open(iter([draft_pb.DraftServiceOpenRequest()]))

    async def server_stream() -> None:
        async for _ in router.Generate(router_pb.GenerateRequest(stop={"max_output_tokens": 1})):
            pass

    async def bidi() -> None:
        async for _ in draft.Draft(one_request()):
            pass

    results: dict[str, grpc.aio.AioRpcError | None] = {}
    for call in (unary, client_stream, server_stream, bidi):
        try:
            await call()
            results[call.__name__] = None
        except grpc.aio.AioRpcError as error:
            results[call.__name__] = error
    return results

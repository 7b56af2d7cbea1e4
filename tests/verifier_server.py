"""A verifier in this process behind real gRPC, and a client that talks to it in plain objects."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
from verifier_parts import make_spec

from specmesh.runtime import wire
from specmesh.runtime.config import ServerConfig
from specmesh.runtime.contract import PEER_METADATA_KEY, VERIFIER_SERVICE
from specmesh.runtime.serving import MeshServer
from specmesh.runtime.streams import channel
from specmesh.runtime.telemetry.spans import Tracer
from specmesh.runtime.types import Block, EntryFailure, FinishReason, ServiceInfo, SessionSpec, StepResult
from specmesh.v1 import verifier_service_pb2 as pb
from specmesh.v1.verifier_service_pb2_grpc import VerifierServiceStub, add_VerifierServiceServicer_to_server
from specmesh.verifier.config import EngineConfig, LimitsConfig
from specmesh.verifier.engine import Engine
from specmesh.verifier.paged import PagedBackend
from specmesh.verifier.service import Served, Tokenizer, VerifierService
from specmesh.verifier.session import Answer
from specmesh.verifier.target import TargetModel


@dataclass
class Verifier:
    """A verifier that serves."""

    address: str
    server: MeshServer
    service: VerifierService
    engine: Engine

    @property
    def blocks_in_use(self) -> int:
        backend = self.engine.backend
        return backend.num_blocks - backend.num_free_blocks


def service_info(**changes: Any) -> ServiceInfo:
    fields: dict[str, Any] = {
        "contract_version": 1, "model_digest": "ab" * 32, "tokenizer_digest": "cd" * 32, "vocabulary_size": 32,
        "max_context_tokens": 256, "kind": "table", "model_name": "t", "build": "test",
    }  # fmt: skip
    return ServiceInfo(**(fields | changes))


@asynccontextmanager
async def serving(
    target: TargetModel,
    *,
    num_blocks: int = 256,
    engine: EngineConfig | None = None,
    limits: LimitsConfig | None = None,
    server: ServerConfig | None = None,
    info: ServiceInfo | None = None,
    tokenizer: Tokenizer | None = None,
    backend: type[PagedBackend] = PagedBackend,
    tracer: Tracer | None = None,
) -> AsyncIterator[Verifier]:
    """Start a verifier over `target`; it stops, engine last, when the block ends."""
    mesh = MeshServer(server or ServerConfig(), [VERIFIER_SERVICE])
    service = VerifierService(limits or LimitsConfig(), mesh.draining, tracer)
    add_VerifierServiceServicer_to_server(service, mesh.grpc)
    port = await mesh.start()
    held = backend(target, num_blocks=num_blocks, max_context_tokens=target.max_context_tokens)
    running = Engine(held, engine or EngineConfig())
    running.start()
    service.serve(Served(running, info or service_info(), tokenizer or Tokenizer()))
    mesh.set_serving()
    try:
        yield Verifier(f"127.0.0.1:{port}", mesh, service, running)
    finally:
        await mesh.stop(0)
        await running.stop()


class Peer:
    """One router process as the verifier sees it: a stub and a stream."""

    def __init__(self, address: str, name: str = "router") -> None:
        self.name = name
        self.channel = channel(address)
        self.stub: Any = VerifierServiceStub(self.channel)
        self.call: Any = self.stub.Verify(metadata=((PEER_METADATA_KEY, name),))
        self.draining = False
        self._answers: dict[int, list[Answer]] = {}

    async def __aenter__(self) -> "Peer":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.call.cancel()
        await self.channel.close()

    async def open(self, spec: SessionSpec, *, remaining_ms: int = 0) -> pb.VerifierServiceOpenResponse:
        return await self.stub.Open(iter(list(wire.verify_open_messages(spec, remaining_ms))))

    async def send(self, *entries: pb.VerifyRequestEntry) -> None:
        await self.call.write(pb.VerifyRequest(entries=entries))

    async def receive(self, session_id: int) -> Answer:
        """The next answer of a session; those of others are kept for their turn."""
        while not self._answers.get(session_id):
            frame = await self.call.read()
            assert frame is not grpc.aio.EOF, "the stream has ended"
            self.draining |= frame.draining
            for entry in frame.entries:
                self._answers.setdefault(entry.session_id, []).append(from_entry(entry))
        return self._answers[session_id].pop(0)

    async def read_all(self) -> None:
        """Until the stream ends, which raises when it ends by an error."""
        while await self.call.read() is not grpc.aio.EOF:
            pass

    async def ask(self, session_id: int, block: Block, *, remaining_ms: int = 0) -> Answer:
        await self.send(wire.block_to_entry(session_id, block, remaining_ms=remaining_ms))
        return await self.receive(session_id)

    async def step(
        self, session_id: int, position: int, token_ids: Sequence[int] = (), rows: Sequence[bytes] = ()
    ) -> StepResult:
        answer = await self.ask(session_id, Block(position, tuple(token_ids), tuple(rows)))
        assert isinstance(answer, StepResult), answer
        return answer

    async def fail(self, session_id: int, position: int, token_ids: Sequence[int] = ()) -> EntryFailure:
        answer = await self.ask(session_id, Block(position, tuple(token_ids)))
        assert isinstance(answer, EntryFailure), answer
        return answer

    async def close(self, session_id: int) -> None:
        await self.send(pb.VerifyRequestEntry(session_id=session_id, close=True))

    async def generate(self, spec: SessionSpec, block_length: int = 0) -> tuple[list[int], FinishReason]:
        """Open and run to the end, drafting the ids that follow each other."""
        await self.open(spec)
        context = list(spec.context)
        while True:
            drafts = [(context[-1] + 1 + offset) % 32 for offset in range(block_length)]
            result = await self.step(spec.session_id, len(context), drafts)
            context += result.token_ids
            if result.finish_reason is not None:
                return context[spec.prompt_length :], result.finish_reason


def from_entry(entry: pb.VerifyResponseEntry) -> Answer:
    if entry.HasField("error"):
        return wire.entry_failure_from_proto(entry.session_id, entry.position, entry.error)
    return wire.step_result_from_entry(entry)


def opening_messages(**changes: Any) -> list[pb.VerifierServiceOpenRequest]:
    """The messages of an `Open`, to be spoilt."""
    return list(wire.verify_open_messages(make_spec(**changes)))


async def until(condition: Any, seconds: float = 5.0) -> None:
    """Wait for what another thread or process brings about; fails when it does not."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what is waited for has no event on this loop
            await asyncio.sleep(0.005)

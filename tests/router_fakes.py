"""Drafts and verifiers in this process, over real gRPC, that do what a test's script says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from specmesh.router.config import DraftsConfig, PoolConfig, RouterConfig, SessionsConfig
from specmesh.router.registration import Target
from specmesh.router.verifier_replica import TokenizerFiles
from specmesh.runtime.contract import CONTRACT_VERSION
from specmesh.runtime.streams import channel
from specmesh.runtime.types import ServiceInfo
from specmesh.runtime.wire import service_info_to_proto
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import draft_service_pb2_grpc as draft_grpc
from specmesh.v1 import entry_error_pb2 as error_pb
from specmesh.v1 import verifier_service_pb2 as verifier_pb
from specmesh.v1 import verifier_service_pb2_grpc as verifier_grpc

Send = Callable[[Any], Awaitable[None]]
DraftScript = Callable[[draft_pb.DraftRequestEntry, Send], Awaitable[None]]
VerifyScript = Callable[[verifier_pb.VerifyRequestEntry, Send], Awaitable[None]]


def drafted(entry: draft_pb.DraftRequestEntry, offset: int, *token_ids: int, rows: Sequence[bytes] = ()) -> Any:
    """Tokens of the block that `entry` asked for."""
    tokens = draft_pb.DraftedTokens(offset=offset, token_ids=token_ids, rows=rows)
    return draft_pb.DraftResponseEntry(session_id=entry.session_id, position=entry.position, tokens=tokens)


def ended(entry: draft_pb.DraftRequestEntry, **fields: Any) -> Any:
    """The end of the answer."""
    end = draft_pb.DraftEnd(**fields)
    return draft_pb.DraftResponseEntry(session_id=entry.session_id, position=entry.position, end=end)


async def well_behaved(entry: draft_pb.DraftRequestEntry, send: Send) -> None:
    """As many tokens as asked for, one a message: 10, 11, ..."""
    for offset in range(entry.block_length):
        await send(drafted(entry, offset, 10 + offset))
    await send(ended(entry, compute_ns=1000, batch_size=1))


class FakeDraft(draft_grpc.DraftServiceServicer):
    """`script` answers each entry; probes (position 1) are always answered well."""

    def __init__(self, info: ServiceInfo, script: DraftScript = well_behaved) -> None:
        self.info = info
        self.script = script
        self.probe_script: DraftScript = well_behaved
        self.entries: list[draft_pb.DraftRequestEntry] = []
        self.opened: list[tuple[int, int, tuple[int, ...]]] = []
        self.closed: set[int] = set()
        self.changed = asyncio.Event()
        self.num_registrations = 0

    async def GetInfo(self, request: Any, context: Any) -> draft_pb.DraftServiceGetInfoResponse:  # noqa: N802
        """What it is."""
        self.num_registrations += 1
        info = service_info_to_proto(self.info)
        if not request.want_vocabulary:
            info.ClearField("vocabulary_hashes")
        return draft_pb.DraftServiceGetInfoResponse(info=info)

    async def Open(self, request_iterator: Any, context: Any) -> draft_pb.DraftServiceOpenResponse:  # noqa: N802
        """Noted."""
        messages = [message async for message in request_iterator]
        header = messages[0].header
        token_ids = tuple(token for message in messages for token in message.token_ids)
        self.opened.append((header.session_id, header.start, token_ids))
        return draft_pb.DraftServiceOpenResponse(have_length=header.length)

    async def Draft(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        """The script for each entry, each in a task of its own."""

        writing = asyncio.Lock()

        async def send(entry: draft_pb.DraftResponseEntry) -> None:
            async with writing:
                await context.write(draft_pb.DraftResponse(entries=[entry]))

        async with asyncio.TaskGroup() as scripts:
            async for frame in request_iterator:
                for entry in frame.entries:
                    self.changed.set()
                    if entry.close:
                        self.closed.add(entry.session_id)
                    elif entry.position == 1:
                        scripts.create_task(self.probe_script(entry, send))
                    else:
                        self.entries.append(entry)
                        scripts.create_task(self.script(entry, send))


async def plain_step(entry: verifier_pb.VerifyRequestEntry, send: Send) -> None:
    """Accept everything; the next token is 50 + position."""
    await send(step_answer(entry, *entry.token_ids, 50 + entry.position, accepted=len(entry.token_ids)))


def step_answer(
    entry: verifier_pb.VerifyRequestEntry, *token_ids: int, accepted: int = 0, **fields: Any
) -> verifier_pb.VerifyResponseEntry:
    """The outcome of a step."""
    return verifier_pb.VerifyResponseEntry(
        session_id=entry.session_id,
        position=entry.position,
        token_ids=token_ids,
        accepted_count=accepted,
        drafted_count=len(entry.token_ids),
        **fields,
    )


def step_failure(entry: verifier_pb.VerifyRequestEntry, reason: str) -> verifier_pb.VerifyResponseEntry:
    """The failure of a step."""
    error = error_pb.EntryError(reason=f"ENTRY_ERROR_REASON_{reason}", message=reason)
    return verifier_pb.VerifyResponseEntry(session_id=entry.session_id, position=entry.position, error=error)


class FakeVerifier(verifier_grpc.VerifierServiceServicer):
    """`script` answers each entry; `on_open` is awaited by every Open and may raise through the context."""

    def __init__(self, info: ServiceInfo, script: VerifyScript = plain_step) -> None:
        self.info = info
        self.script = script
        self.on_open: Callable[[Any], Awaitable[None]] | None = None
        self.opened: list[tuple[verifier_pb.VerifyOpenHeader, tuple[int, ...]]] = []
        self.entries: list[verifier_pb.VerifyRequestEntry] = []
        self.closed: set[int] = set()
        self.changed = asyncio.Event()

    async def GetInfo(self, request: Any, context: Any) -> verifier_pb.VerifierServiceGetInfoResponse:  # noqa: N802
        """What it is."""
        info = service_info_to_proto(self.info)
        return verifier_pb.VerifierServiceGetInfoResponse(info=info, eos_token_ids=[2])

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Ids without text."""
        yield verifier_pb.VerifierServiceGetTokenizerResponse(eos_token_ids=[2])

    async def Open(self, request_iterator: Any, context: Any) -> verifier_pb.VerifierServiceOpenResponse:  # noqa: N802
        """Noted."""
        messages = [message async for message in request_iterator]
        self.opened.append((messages[0].header, tuple(token for each in messages for token in each.token_ids)))
        self.changed.set()
        if self.on_open is not None:
            await self.on_open(context)
        return verifier_pb.VerifierServiceOpenResponse(cached_token_count=0)

    async def Verify(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        """The script for each entry, in order."""

        async def send(entry: verifier_pb.VerifyResponseEntry) -> None:
            await context.write(verifier_pb.VerifyResponse(entries=[entry]))

        async for frame in request_iterator:
            for entry in frame.entries:
                if entry.close:
                    self.closed.add(entry.session_id)
                    self.changed.set()
                else:
                    self.entries.append(entry)
                    await self.script(entry, send)


class Served:
    """A server on a port of its own that can be stopped and started again there."""

    def __init__(self, add: Callable[[grpc.aio.Server], None], port: int = 0) -> None:
        self._add = add
        self.port = port
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """Where it is."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """On the same port each time."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._add(self._server)
        self.port = self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """At once: calls in flight are cut off."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None


@asynccontextmanager
async def serving(*fakes: FakeDraft | FakeVerifier, ports: Sequence[int] = ()) -> AsyncIterator[list[Served]]:
    """All of them, each on a port of its own; on these if they are given."""
    free = [0] * len(fakes)
    servers = [Served(_adder(fake), port) for fake, port in zip(fakes, ports or free, strict=True)]
    for server in servers:
        await server.start()
    try:
        yield servers
    finally:
        for server in servers:
            await server.stop()


def _adder(fake: FakeDraft | FakeVerifier) -> Callable[[grpc.aio.Server], None]:
    if isinstance(fake, FakeDraft):
        return lambda server: draft_grpc.add_DraftServiceServicer_to_server(fake, server)
    return lambda server: verifier_grpc.add_VerifierServiceServicer_to_server(fake, server)


def quick_config(
    verifiers: Sequence[str] = ("127.0.0.1:1",),
    pools: Sequence[PoolConfig] = (),
    drafts: dict[str, Any] | None = None,
    sessions: dict[str, Any] | None = None,
    **more: Any,
) -> RouterConfig:
    """Short pauses, so that tests are quick; deadlines long enough for a busy machine."""
    quick = {"block_deadline_ms": 2000.0, "cooldown_seconds": 0.02, "max_cooldown_seconds": 0.1}
    return RouterConfig(
        verifiers=tuple(verifiers),
        pools=tuple(pools),
        drafts=DraftsConfig(**(quick | (drafts or {}))),
        sessions=SessionsConfig(**({"resume_seconds": 10.0, "hold_out": 0.0} | (sessions or {}))),
        discovery_seconds=0.05,
        **more,
    )


def connect(address: str) -> grpc.aio.Channel:
    """As a router does."""
    return channel(address)


def ignore_target(target: Target, files: TokenizerFiles) -> None:
    """For tests without drafts."""


@asynccontextmanager
async def running(part: Any) -> AsyncIterator[None]:
    """Its `run` beside the test."""
    task = asyncio.create_task(part.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition that other tasks bring about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what is waited for is another part's state
            await asyncio.sleep(0.005)


def other(info: ServiceInfo, **changes: Any) -> ServiceInfo:
    """The same but for the changes."""
    return replace(info, **changes)


def scripted_info(max_context_tokens: int) -> ServiceInfo:
    """What a scripted verifier or draft says of itself beside real processes."""
    return ServiceInfo(
        contract_version=CONTRACT_VERSION,
        model_digest="c" * 64,
        tokenizer_digest="",
        vocabulary_size=10_000,
        max_context_tokens=max_context_tokens,
        kind="table",
        model_name="scripted",
        build="test",
        max_block_length=8,
    )

"""gRPC on one side, the engine on the other: translation only."""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio

from specmesh.draft.block import Failed
from specmesh.draft.drafter import DrafterInfo
from specmesh.draft.engine import DraftEngine
from specmesh.draft.metrics import BlockWatch
from specmesh.draft.runner import Command, Runner
from specmesh.draft.stream import RouterStream, failed_entry
from specmesh.runtime.build import build_version
from specmesh.runtime.contract import CONTRACT_VERSION, OPEN_CHUNK_TOKENS
from specmesh.runtime.errors import ContextTooLong, Draining, InvalidValue, UnknownField
from specmesh.runtime.reading import WatchedWriter
from specmesh.runtime.telemetry.names import DRAFT_SPAN
from specmesh.runtime.telemetry.spans import Tracer
from specmesh.runtime.types import EntryErrorReason, ServiceInfo
from specmesh.runtime.unknown_fields import refuse_unknown_fields, refuse_unknown_fields_of
from specmesh.runtime.wire import draft_ask_from_entry, service_info_to_proto
from specmesh.v1 import draft_service_pb2 as pb
from specmesh.v1 import draft_service_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    # Generic in its stub only.
    Context = grpc.aio.ServicerContext[Any, Any]


class DraftServicer(pb_grpc.DraftServiceServicer):
    """Carries entries to the runner's engine and its events back; UNAVAILABLE until `attach`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        watch: BlockWatch | None = None,
        tracer: Tracer | None = None,
        *,
        max_unread_seconds: float,
    ) -> None:
        """`clock`: the engine's; `watch` hears of every answer; a stream ends that is not read for so long."""
        self._clock = clock
        self._watch = watch
        self._tracer = tracer
        self._attached: tuple[Runner, ServiceInfo] | None = None
        self._max_unread_seconds = max_unread_seconds
        self._streams: dict[RouterStream, WatchedWriter] = {}
        self._draining = False

    def attach(self, runner: Runner, info: DrafterInfo, max_block_length: int) -> None:
        """The draft is loaded."""
        self._attached = runner, service_info(info, max_block_length)

    @property
    def _loaded(self) -> tuple[Runner, ServiceInfo]:
        if self._attached is None:
            raise Draining("the draft is still loading")
        return self._attached

    async def Draft(  # noqa: N802  the name is the method's on the wire
        self, request_iterator: AsyncIterator[pb.DraftRequest], context: "Context"
    ) -> None:
        """Answer frames until the peer has gone, or has said all and got all answers."""
        runner, _ = self._loaded
        stream = RouterStream(self._watch, self._tracer)
        writer = self._streams[stream] = WatchedWriter(context, self._max_unread_seconds)
        try:
            with writer:
                async with asyncio.TaskGroup() as tasks:
                    reader = tasks.create_task(self._read(request_iterator, stream, writer))
                    while await stream.queue.ready():
                        await self._flush(stream, writer)
                    reader.cancel()
            if stream.failure is not None:
                raise stream.failure
        finally:
            stream.spans.close()
            del self._streams[stream]
            runner.post(lambda engine: engine.detach(stream))

    async def Open(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.DraftServiceOpenRequest], context: "Context"
    ) -> pb.DraftServiceOpenResponse:
        """Take a context in. Raises `InvalidValue`, `ContextTooLong`, `Draining`, `UnknownField`."""
        runner, info = self._loaded
        header, token_ids = await _read_open(request_iterator, info.max_context_tokens)
        session_id, start = header.session_id, header.start
        have = await runner.call(lambda engine: engine.open(session_id, start, token_ids))
        return pb.DraftServiceOpenResponse(have_length=have)

    async def GetInfo(  # noqa: N802
        self, request: pb.DraftServiceGetInfoRequest, context: "Context"
    ) -> pb.DraftServiceGetInfoResponse:
        """What this service is."""
        refuse_unknown_fields(request)
        info = service_info_to_proto(self._loaded[1])
        if not request.want_vocabulary:
            info.ClearField("vocabulary_hashes")
        return pb.DraftServiceGetInfoResponse(info=info)

    async def _read(
        self, request_iterator: AsyncIterator[pb.DraftRequest], stream: RouterStream, writer: WatchedWriter
    ) -> None:
        runner, _ = self._loaded
        async for frame in request_iterator:
            try:
                refuse_unknown_fields_of(frame)
            except UnknownField as error:
                stream.fail(error)
                return
            arrived = self._clock()
            commands = [command for entry in frame.entries if (command := _command(entry, stream, arrived)) is not None]
            if commands:
                runner.post(partial(_run_all, commands=commands))
            # An inline engine has answered by now: two turns of the event loop less than by way of the other task.
            await self._flush(stream, writer)
            await runner.keep_up()
        stream.finish()

    async def _flush(self, stream: RouterStream, writer: WatchedWriter) -> None:
        """Write all that waits; one at a time, or frames would change places."""
        async with stream.writing:
            while len(stream.queue):
                await writer.write(pb.DraftResponse(entries=await stream.next_frame(), draining=self._draining))

    async def written(self) -> None:
        """Until every stream has written what was told before."""
        for stream, writer in tuple(self._streams.items()):
            await self._flush(stream, writer)

    async def drain(self) -> None:
        """Say so on every stream, finish the blocks in flight, end the streams."""
        self._draining = True
        if self._attached is None:
            return
        runner, _ = self._attached
        await runner.call(_start_draining)
        for stream in self._streams:
            stream.announce()
        await runner.idle.wait()
        for stream in self._streams:
            stream.queue.close()


def _command(entry: pb.DraftRequestEntry, stream: RouterStream, arrived: float) -> Command | None:
    """What the entry asks of the engine; None when it is answered already."""
    if entry.close:
        stream.forgive(entry.session_id)
        return partial(DraftEngine.close, session_id=entry.session_id)
    stream.owe(entry.session_id)
    try:
        refuse_unknown_fields(entry)
        ask = draft_ask_from_entry(entry)
    except (InvalidValue, UnknownField) as error:
        failed = Failed(EntryErrorReason.INVALID_VALUE, error.message)
        stream.answer(failed_entry(entry.session_id, entry.position, failed), last=True)
        return None
    if entry.traceparent:
        stream.spans.begin(DRAFT_SPAN, ask.session_id, ask.position, entry.traceparent)
    return partial(DraftEngine.submit, ask=ask, receiver=stream, arrived=arrived, remaining_ms=entry.remaining_ms)


def _run_all(engine: DraftEngine, commands: list[Command]) -> None:
    for command in commands:
        command(engine)


def _start_draining(engine: DraftEngine) -> None:
    engine.draining = True


async def _read_open(
    messages: AsyncIterator[pb.DraftServiceOpenRequest], max_context_tokens: int
) -> tuple[pb.DraftOpenHeader, "array[int]"]:
    """The header and the ids of an `Open` call: no more of them are taken in than the header may announce."""
    header: pb.DraftOpenHeader | None = None
    token_ids = array("I")
    async for message in messages:
        refuse_unknown_fields(message)
        if len(message.token_ids) > OPEN_CHUNK_TOKENS:
            raise InvalidValue("token_ids", f"at most {OPEN_CHUNK_TOKENS} a message, got {len(message.token_ids)}")
        if header is None:
            header = _checked_header(message, max_context_tokens)
        elif message.HasField("header"):
            raise InvalidValue("header", "only the first message has one")
        elif not message.token_ids:
            raise InvalidValue("token_ids", "a message after the first must bring some")
        token_ids.extend(message.token_ids)
        if header.start + len(token_ids) > header.length:
            raise InvalidValue("header.length", f"is {header.length}, but more ids followed")
    if header is None or header.start + len(token_ids) != header.length:
        raise InvalidValue("header.length", "must be the header's start and the ids that follow")
    return header, token_ids


def _checked_header(message: pb.DraftServiceOpenRequest, max_context_tokens: int) -> pb.DraftOpenHeader:
    if not message.HasField("header"):
        raise InvalidValue("header", "must be in the first message")
    if message.header.length > max_context_tokens:
        raise ContextTooLong("header.length", f"the draft's context has {max_context_tokens} tokens")
    return message.header


def service_info(info: DrafterInfo, max_block_length: int) -> ServiceInfo:
    """What a router learns at registration."""
    return ServiceInfo(
        contract_version=CONTRACT_VERSION,
        model_digest=info.model_digest,
        tokenizer_digest=info.tokenizer_digest,
        vocabulary_size=info.vocabulary_size,
        max_context_tokens=info.max_context_tokens,
        kind=info.kind,
        model_name=info.name,
        build=build_version(),
        vocabulary_hashes=info.vocabulary_hashes,
        max_block_length=max_block_length,
        one_hot=info.one_hot,
    )

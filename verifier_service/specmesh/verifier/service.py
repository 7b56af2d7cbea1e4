"""The gRPC face of the verifier: translation only."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio

from specmesh.runtime import wire
from specmesh.runtime.contract import PEER_METADATA_KEY
from specmesh.runtime.errors import InvalidValue, MeshError, NoVerifier, Overloaded, UnknownField
from specmesh.runtime.streams import FrameQueue
from specmesh.runtime.telemetry.entries import EntrySpans
from specmesh.runtime.telemetry.names import VERIFY_SPAN
from specmesh.runtime.telemetry.spans import Tracer
from specmesh.runtime.types import EntryErrorReason, EntryFailure, ServiceInfo
from specmesh.runtime.unknown_fields import refuse_unknown_fields, refuse_unknown_fields_of
from specmesh.v1 import verifier_service_pb2 as pb
from specmesh.v1.verifier_service_pb2_grpc import VerifierServiceServicer
from specmesh.verifier.config import LimitsConfig
from specmesh.verifier.engine import Engine
from specmesh.verifier.metrics import end_span
from specmesh.verifier.opening import read_open
from specmesh.verifier.session import Answer

TOKENIZER_CHUNK_BYTES = 256 * 1024

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """What a router needs to speak text; all empty for a target without text."""

    tokenizer_json: bytes = b""
    chat_template: str = ""
    special_tokens: tuple[tuple[str, str], ...] = ()
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """What the service serves once its model is loaded."""

    engine: Engine
    info: ServiceInfo
    tokenizer: Tokenizer = Tokenizer()


class PeerStream:
    """The answers of one peer's stream, bounded: a peer that does not read is reset."""

    def __init__(self, peer: str, limits: LimitsConfig, tracer: Tracer | None = None) -> None:
        self.peer = peer
        self.spans = EntrySpans(tracer)
        self.queue: FrameQueue[pb.VerifyResponseEntry] = FrameQueue(
            max_entries=limits.max_unread_entries, max_bytes=limits.max_unread_bytes
        )
        self.error: MeshError | None = None

    def deliver(self, answers: Sequence[Answer]) -> None:
        """Queue answers for the writer."""
        try:
            for answer in answers:
                self.queue.put(_to_entry(answer))
                if self.spans.any_open:
                    end_span(self.spans, answer)
        except Overloaded as error:
            self.fail(error)

    def fail(self, error: MeshError) -> None:
        """End the stream with an error."""
        self.error = error
        self.queue.close()


class VerifierService(VerifierServiceServicer):
    """Until `serve` is called every method answers UNAVAILABLE."""

    def __init__(self, limits: LimitsConfig, draining: asyncio.Event, tracer: Tracer | None = None) -> None:
        self._limits = limits
        self._tracer = tracer
        self._draining = draining
        self._served: Served | None = None
        self._streams: set[PeerStream] = set()

    def serve(self, served: Served) -> None:
        """The model is loaded."""
        self._served = served

    def fail(self, error: MeshError) -> None:
        """End every stream: the engine has died."""
        for stream in self._streams:
            stream.fail(error)

    async def Open(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.VerifierServiceOpenRequest], context: Context
    ) -> pb.VerifierServiceOpenResponse:
        """Answer when the session is admitted; its prompt is prefilled after that."""
        engine = self._loaded().engine
        spec, remaining_ms = await read_open(
            request_iterator,
            limits=self._limits,
            vocabulary_size=engine.backend.vocabulary_size,
            max_context_tokens=engine.backend.max_context_tokens,
        )
        num_cached = await engine.open(spec, remaining_ms=remaining_ms)
        return pb.VerifierServiceOpenResponse(cached_token_count=num_cached)

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.VerifyRequest], context: Context
    ) -> AsyncIterator[pb.VerifyResponse]:
        """One frame per tick and peer, with all that the tick answered."""
        engine = self._loaded().engine
        stream = PeerStream(_peer_of(context), self._limits, self._tracer)
        self._streams.add(stream)
        reading = asyncio.ensure_future(_read(request_iterator, stream, engine))
        try:
            async for entries in stream.queue.frames():
                yield pb.VerifyResponse(entries=entries, draining=self._draining.is_set())
            if stream.error is not None:
                raise stream.error
            await reading
        finally:
            reading.cancel()
            self._streams.discard(stream)
            stream.spans.close()
            engine.lose_stream(stream)

    async def GetTokenizer(  # noqa: N802
        self, request: pb.VerifierServiceGetTokenizerRequest, context: Context
    ) -> AsyncIterator[pb.VerifierServiceGetTokenizerResponse]:
        """tokenizer.json in chunks; the first also has the small fields."""
        refuse_unknown_fields(request)
        served = self._loaded()
        content = served.tokenizer.tokenizer_json
        yield pb.VerifierServiceGetTokenizerResponse(
            tokenizer_json=content[:TOKENIZER_CHUNK_BYTES],
            chat_template=served.tokenizer.chat_template,
            tokenizer_digest=served.info.tokenizer_digest,
            eos_token_ids=served.tokenizer.eos_token_ids,
            special_tokens=dict(served.tokenizer.special_tokens),
        )
        for start in range(TOKENIZER_CHUNK_BYTES, len(content), TOKENIZER_CHUNK_BYTES):
            chunk = content[start : start + TOKENIZER_CHUNK_BYTES]
            yield pb.VerifierServiceGetTokenizerResponse(tokenizer_json=chunk)

    async def GetInfo(  # noqa: N802
        self, request: pb.VerifierServiceGetInfoRequest, context: Context
    ) -> pb.VerifierServiceGetInfoResponse:
        """What this verifier is, and how busy."""
        refuse_unknown_fields(request)
        served = self._loaded()
        info = served.info if request.want_vocabulary else replace(served.info, vocabulary_hashes=b"")
        return pb.VerifierServiceGetInfoResponse(
            info=wire.service_info_to_proto(info),
            eos_token_ids=served.tokenizer.eos_token_ids,
            session_count=served.engine.num_sessions,
            free_block_count=served.engine.backend.num_free_blocks,
            block_count=served.engine.backend.num_blocks,
        )

    def _loaded(self) -> Served:
        if self._served is None:
            raise NoVerifier("the model is still loading")
        return self._served


async def _read(frames: AsyncIterator[pb.VerifyRequest], stream: PeerStream, engine: Engine) -> None:
    """Take entries until the peer has no more; then the stream ends."""
    try:
        async for frame in frames:
            refuse_unknown_fields_of(frame)
            for entry in frame.entries:
                _take(entry, stream, engine)
            await engine.keep_up()
    finally:
        stream.queue.close()


def _take(entry: pb.VerifyRequestEntry, stream: PeerStream, engine: Engine) -> None:
    try:
        refuse_unknown_fields(entry)
    except UnknownField as error:
        failure = EntryFailure(entry.session_id, entry.position, EntryErrorReason.INVALID_VALUE, error.message)
        stream.deliver([failure])
        return
    if entry.close:
        stream.spans.cancel(entry.session_id)
        engine.close(stream.peer, entry.session_id)
    else:
        block = wire.block_from_entry(entry)
        if entry.traceparent:
            stream.spans.begin(VERIFY_SPAN, entry.session_id, entry.position, entry.traceparent, after=block.after)
        engine.submit(stream, entry.session_id, block, remaining_ms=entry.remaining_ms)


def _peer_of(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == PEER_METADATA_KEY and value:
            return str(value)
    raise InvalidValue(PEER_METADATA_KEY, "the stream's metadata must name the peer")


def _to_entry(answer: Answer) -> pb.VerifyResponseEntry:
    if isinstance(answer, EntryFailure):
        error = wire.entry_error_to_proto(answer)
        return pb.VerifyResponseEntry(session_id=answer.session_id, position=answer.position, error=error)
    return wire.step_result_to_entry(answer)

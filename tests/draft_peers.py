"""Draft services in this process behind real gRPC, and a router's side of the conversation."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from specmesh.draft.admission import EngineLimits
from specmesh.draft.drafter import Drafter
from specmesh.draft.engine import DraftEngine, Stopping
from specmesh.draft.ngram_file import NgramTable, law_to_levels
from specmesh.draft.runner import InlineRunner, Runner, ThreadRunner
from specmesh.draft.service import DraftServicer
from specmesh.draft.table import TableDrafter
from specmesh.runtime.config import ServerConfig
from specmesh.runtime.context import context_hash
from specmesh.runtime.contract import DRAFT_SERVICE, ROW_TOTAL
from specmesh.runtime.rows import check_block, decode_row
from specmesh.runtime.serving import MeshServer
from specmesh.runtime.streams import channel
from specmesh.runtime.types import DraftAsk, Rule, Sampling
from specmesh.runtime.wire import draft_ask_to_entry, token_chunks
from specmesh.v1 import draft_service_pb2 as pb
from specmesh.v1 import draft_service_pb2_grpc as pb_grpc
from specmesh.v1 import entry_error_pb2

KEY = 0x0123456789ABCDEF
WHOLE_ROWS = EngineLimits(row_mass=1.0)


def random_law(size: int, seed: int) -> NDArray[np.float64]:
    """A law over the last two tokens, `[size, size, size]`."""
    return np.random.default_rng(seed).dirichlet(np.ones(size), size=(size, size))


def law_drafter(law: NDArray[np.float64]) -> TableDrafter:
    """A draft with exactly this law."""
    return table_drafter(NgramTable(law_to_levels(law), vocabulary_size=law.shape[0], digest="law"))


def table_drafter(table: NgramTable, max_context_tokens: int = 4096) -> TableDrafter:
    """A draft from a table in memory."""
    return TableDrafter(table, max_context_tokens=max_context_tokens, max_kept_rows=4096)


def ask_for(
    context: Sequence[int],
    delta: int,
    block_length: int = 4,
    *,
    session_id: int = 1,
    sampling: Sampling | None = None,
    rule: Rule = Rule.BLOCK,
    **more: object,
) -> DraftAsk:
    """An entry for `context`, its last `delta` tokens sent along."""
    ask = DraftAsk(
        session_id=session_id,
        position=len(context),
        context_hash=context_hash(context),
        delta_token_ids=tuple(context[len(context) - delta :]),
        block_length=block_length,
        sampling=sampling or Sampling(),
        rule=rule,
        draft_key=KEY,
    )
    return replace(ask, **more)  # type: ignore[arg-type]


@dataclass
class Answer:
    """All that came back for one entry."""

    token_ids: list[int] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    end: pb.DraftEnd | None = None
    needed: int | None = None
    error: str | None = None
    message: str = ""
    num_frames: int = 0
    num_parts: int = 0
    draining: bool = False

    @property
    def reason(self) -> str:
        """Why the block ended, as in the types."""
        assert self.end is not None, self
        return pb.DraftEndReason.Name(self.end.reason).removeprefix("DRAFT_END_REASON_")

    @property
    def source(self) -> str:
        """Where the context came from."""
        assert self.end is not None, self
        return pb.ContextSource.Name(self.end.context_source).removeprefix("CONTEXT_SOURCE_")

    @property
    def done(self) -> bool:
        return self.end is not None or self.needed is not None or self.error is not None

    def add(self, entry: pb.DraftResponseEntry) -> None:
        """Take one entry in, checking what must hold of every answer."""
        assert not self.done, "something came after the end"
        if entry.row:
            ids, weights = decode_row(entry.row)
            self.num_parts += 1
            self.token_ids.append(entry.token_id)
            self.rows.append(entry.row)
            weight = weights[ids == entry.token_id].sum()
            self.logprobs.append(math.log(weight / ROW_TOTAL) if weight else -math.inf)
        match entry.WhichOneof("event"):
            case "tokens":
                assert entry.tokens.offset == len(self.token_ids)
                self.num_parts += 1
                self.token_ids += entry.tokens.token_ids
                self.rows += entry.tokens.rows
                self.logprobs += entry.tokens.draft_logprobs
            case "end":
                self.end = entry.end
                assert entry.end.drafted_count == len(self.token_ids) == len(self.logprobs)
                assert len(self.rows) in (0, len(self.token_ids))
            case "context_needed":
                self.needed = entry.context_needed.have_length
            case "error":
                self.error = pb_error_name(entry.error.reason)
                self.message = entry.error.message


def pb_error_name(reason: int) -> str:
    """Name of an entry's error, without prefix."""
    return entry_error_pb2.EntryErrorReason.Name(reason).removeprefix("ENTRY_ERROR_REASON_")


class Conversation:
    """One stream, as a router holds it: any number of entries outstanding."""

    def __init__(self, stub: pb_grpc.DraftServiceStub) -> None:
        self._stub = stub
        self.call = stub.Draft()
        self._answers: dict[tuple[int, int], list[Answer]] = {}
        self._begun: dict[int, Answer] = {}
        self.frames: list[pb.DraftResponse] = []

    async def ask(self, ask: DraftAsk, **more: int) -> Answer:
        """Ask and wait for the end of the answer."""
        return (await self.ask_all([ask], **more))[0]

    async def ask_all(self, asks: Sequence[DraftAsk], **more: int) -> list[Answer]:
        """Ask all in one frame and wait for the ends of all answers."""
        await self.send([draft_ask_to_entry(ask, **more) for ask in asks])
        answers = [self.expect(ask.session_id, ask.position) for ask in asks]
        while not all(answer.done for answer in answers):
            await self.read()
        return answers

    async def ask_or_open(self, ask: DraftAsk, context: Sequence[int]) -> Answer:
        """Ask, and when the context is needed, bring it and ask again."""
        answer = await self.ask(ask)
        if answer.needed is None:
            return answer
        assert await self.open(ask.session_id, context, answer.needed) == len(context)
        return await self.ask(ask)

    async def send(self, entries: Sequence[pb.DraftRequestEntry]) -> None:
        """Write one frame."""
        await self.call.write(pb.DraftRequest(entries=entries))

    def expect(self, session_id: int, position: int) -> Answer:
        """The answer to an entry that was sent, yet to come."""
        answer = Answer()
        self._answers.setdefault((session_id, position), []).append(answer)
        return answer

    async def read(self) -> pb.DraftResponse:
        """Read one frame into the answers that it belongs to."""
        frame = await self.call.read()
        assert frame is not grpc.aio.EOF, "the stream ended"
        self.frames.append(frame)
        touched = []
        for entry in frame.entries:
            answer = self._answer_of(entry)
            answer.add(entry)
            answer.draining |= frame.draining
            touched.append(answer)
        for answer in {id(answer): answer for answer in touched}.values():
            answer.num_frames += 1
        return frame

    def _answer_of(self, entry: pb.DraftResponseEntry) -> Answer:
        if entry.handle and not entry.position:
            return self._begun[entry.handle]
        answer = next(a for a in self._answers[entry.session_id, entry.position] if not a.done)
        if entry.handle:
            assert entry.handle not in self._begun or self._begun[entry.handle].done, "a handle in use"
            self._begun[entry.handle] = answer
        return answer

    async def open(self, session_id: int, context: Sequence[int], start: int = 0) -> int:
        """Bring the context from `start` on; the length held then."""
        header = pb.DraftOpenHeader(session_id=session_id, start=start, length=len(context))
        messages = [pb.DraftServiceOpenRequest(token_ids=chunk) for chunk in token_chunks(context[start:])]
        messages[0].header.CopyFrom(header)
        response = await self._stub.Open(iter(messages))
        return response.have_length


@dataclass
class Peer:
    """A draft service and a stream to it."""

    stub: pb_grpc.DraftServiceStub
    talk: Conversation
    engine: DraftEngine
    runner: Runner
    servicer: DraftServicer
    server: MeshServer
    channel: grpc.aio.Channel

    def new_stream(self) -> Conversation:
        """As another router has it."""
        return Conversation(self.stub)


@asynccontextmanager
async def draft_peer(
    drafter: Drafter,
    *,
    limits: EngineLimits = WHOLE_ROWS,
    stopping: Stopping | None = None,
    config: ServerConfig | None = None,
) -> AsyncIterator[Peer]:
    """A draft service on a free port of this machine; stopped, its thread too, at the end."""
    config = config or ServerConfig()
    server = MeshServer(config, [DRAFT_SERVICE])
    engine = DraftEngine(drafter, limits, stopping or Stopping(), time.monotonic)
    runner = InlineRunner(engine) if drafter.inline else ThreadRunner(engine)
    servicer = DraftServicer(max_unread_seconds=config.max_unread_seconds)
    servicer.attach(runner, drafter.info, limits.max_block_length)
    pb_grpc.add_DraftServiceServicer_to_server(servicer, server.grpc)
    await server.start()
    try:
        async with channel(server.address) as to_server:
            stub = pb_grpc.DraftServiceStub(to_server)
            yield Peer(stub, Conversation(stub), engine, runner, servicer, server, to_server)
    finally:
        await server.stop(0)
        await runner.stop()


def assert_honest(answer: Answer, ask: DraftAsk, vocabulary_size: int) -> None:
    """Every token derives again from its row and the key, as the verifier will check."""
    refusal, _ = check_block(
        answer.token_ids,
        answer.rows,
        vocabulary_size=vocabulary_size,
        draft_key=ask.draft_key,
        block_start=ask.position,
    )
    assert refusal is None, refusal


async def until(condition: "asyncio.Event", seconds: float = 5.0) -> None:
    """Wait for an event, not for ever."""
    await asyncio.wait_for(condition.wait(), seconds)

"""One replica of a draft service: its connection, the blocks that are on their way from it, its health."""

import asyncio
import logging
import time
from collections.abc import Callable

import grpc.aio

from specmesh.router.ask import Ask, AskSource, Ending, Probe, open_messages
from specmesh.router.block import ArrivingBlock, DraftWork, MalformedAnswer
from specmesh.router.health import ReplicaHealth
from specmesh.router.introduction import WrongService, introduce_draft
from specmesh.router.link import Link, StreamEnded, lost_because
from specmesh.router.open_asks import OpenAsks
from specmesh.router.presence import Presence
from specmesh.router.registration import Target, draft_fault
from specmesh.runtime.errors import Overloaded
from specmesh.runtime.types import ArmState, EntryErrorReason, ServiceInfo
from specmesh.runtime.wire import (
    DRAFT_END_FROM_PROTO,
    ENTRY_ERROR_FROM_PROTO,
    draft_ask_to_entry,
)
from specmesh.v1 import draft_service_pb2 as pb
from specmesh.v1.draft_service_pb2_grpc import DraftServiceStub

_log = logging.getLogger(__name__)

INLINE_TOKENS = 1024
"""A context not yet sent goes with the entry up to this length; a longer one when the replica asks for it."""
NOTED_FAILURES = 3
"""So many failures without a good block between them are worth a line of the log."""


class DraftReplica:
    """Connects, introduces itself to the arm registry, serves asks; reconnects until it is cancelled."""

    def __init__(
        self,
        pool: str,
        address: str,
        *,
        connect: Callable[[str], grpc.aio.Channel],
        target: Target,
        health: ReplicaHealth,
        probe_seconds: float,
        joined: Callable[["DraftReplica"], None],
    ) -> None:
        """`joined` is called when the replica has been found to fit, before it serves."""
        self.pool = pool
        self.address = address
        self.health = health
        self.info: ServiceInfo | None = None
        self.epoch = 0
        """Counts connections: what an earlier one was sent is not known to be held."""
        self.num_sessions = 0
        """Sessions whose cache is here, for balancing."""
        self.round_trip = 0.0
        """Seconds to the replica and back, by the latest probe; its own work is left out."""
        self._connect = connect
        self._target = target
        self._probe_seconds = probe_seconds
        self._joined = joined
        self._link: Link[pb.DraftRequestEntry] | None = None
        self._stub: DraftServiceStub | None = None
        self._asks = OpenAsks()
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._unwell = asyncio.Event()
        self._presence = Presence("draft", pool=pool, address=address)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with self._connect(self.address) as channel:
                    await self._serve(channel)
            except (grpc.aio.AioRpcError, StreamEnded) as error:
                reason = lost_because(error)
                self.health.disconnected(time.monotonic(), reason)
                self._presence.out(reason)
            await asyncio.sleep(max(self.health.retry_at - time.monotonic(), 0.0))
            if self.health.state is ArmState.COOLING:
                self.health.probe()

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        self._stub = DraftServiceStub(channel)  # type: ignore[no-untyped-call]
        if not await self._register(channel):
            return
        self.epoch += 1
        self._link = Link(self._stub.Draft(), _frame, self._receive)
        keeper = asyncio.create_task(self._keep_well())
        try:
            await self._link.run()
        finally:
            self._link = None
            for task in (keeper, *self._opening.values()):
                task.cancel()
            self._asks.fail()

    async def _register(self, channel: grpc.aio.Channel) -> bool:
        try:
            self.info = await introduce_draft(channel, self._target)
        except WrongService as error:
            self._does_not_fit(logging.WARNING, str(error))
            return False
        fault = draft_fault(self.info, self._target.info)
        if fault:
            self._does_not_fit(logging.ERROR, fault)
            return False
        self.health.introduced()
        self._joined(self)
        return self.health.state is not ArmState.QUARANTINED

    def _does_not_fit(self, level: int, fault: str) -> None:
        if self.health.reason != fault:
            names = {"pool": self.pool, "address": self.address, "reason": fault}
            _log.log(level, "draft is incompatible", extra=names)
        self.health.incompatible(time.monotonic(), fault)

    async def _keep_well(self) -> None:
        """Try the replica away from every session, at first and after each pause."""
        while True:
            if self.health.state is ArmState.COOLING:
                await asyncio.sleep(max(self.health.retry_at - time.monotonic(), 0.0))
                self.health.probe()
            if self.health.state is ArmState.PROBING:
                await self._probe()
                continue
            self._unwell.clear()
            await self._unwell.wait()

    async def _probe(self) -> None:
        probe, started = Probe(), time.perf_counter_ns()
        ending, block = await self.draft(probe, 1, delta_start=0, seconds=self._probe_seconds)
        waited = time.perf_counter_ns() - started
        self.close(probe.session_id)
        if ending is Ending.COMPLETE:
            self.round_trip = max(waited - block.work.queue_ns - block.work.compute_ns, 0) / 1e9
            self.health.recover(time.monotonic())
            if not self.health.num_failures:
                self._presence.ready()
        else:
            self.fail("the probe was not answered in time")

    async def draft(
        self, source: AskSource, length: int, *, delta_start: int, seconds: float, want_scores: bool = False
    ) -> tuple[Ending, ArrivingBlock]:
        """Ask for a block and wait for it, `seconds` at most; the block holds what has arrived by then."""
        loop = asyncio.get_running_loop()
        block = ArrivingBlock(len(source.context), length)
        ask = Ask(source, block, loop.create_future(), loop.time() + seconds, want_scores)
        if not self._send(ask, delta_start, seconds):
            return Ending.FAILED, block
        self._asks.add(ask)
        timer = loop.call_at(ask.deadline, ask.finish, Ending.CUT)
        try:
            return await ask.done, block
        finally:
            timer.cancel()
            self._asks.remove(ask)

    def close(self, session_id: int) -> None:
        """Let the replica forget a session."""
        opening = self._opening.get(session_id)
        if opening is not None:
            opening.cancel()
        if self._link is not None:
            try:
                self._link.send(pb.DraftRequestEntry(session_id=session_id, close=True))
            except Overloaded:
                self.fail("does not read its stream")

    def on_time(self) -> None:
        """A block of a session was complete by its deadline."""
        self.health.on_time()
        self._presence.ready()

    def silent(self, asked: float) -> None:
        """Nothing of a block, asked for at `asked` of the monotonic clock, had come by its deadline."""
        self.health.silent(time.monotonic(), asked)
        self._unwell.set()

    def fail(self, reason: str) -> None:
        """Something went wrong with a block: pause, then probe."""
        self.health.fail(time.monotonic(), reason)
        if self.health.num_failures >= NOTED_FAILURES:
            self._presence.out(reason)
        self._unwell.set()

    def late(self) -> None:
        """A block was cut at its deadline with something in it."""
        self.health.late(time.monotonic())
        self._unwell.set()

    def quarantine(self, reason: str) -> None:
        """No more work for what this process serves."""
        self.health.quarantine(time.monotonic(), reason)

    def _send(self, ask: Ask, delta_start: int, seconds: float) -> bool:
        if self._link is None:
            return False
        milliseconds = max(round(seconds * 1000), 1)
        message = ask.source.ask(delta_start, ask.block.length, milliseconds, want_scores=ask.want_scores)
        try:
            entry = draft_ask_to_entry(
                message,
                remaining_ms=milliseconds,
                traceparent=ask.source.traceparent,
                sampling=ask.source.sampling_message,
            )
            self._link.send(entry)
        except Overloaded:
            self.fail("does not read its stream")
            return False
        return True

    def _receive(self, frame: pb.DraftResponse) -> None:
        for entry in frame.entries:
            if (ask := self._asks.of(entry)) is not None:
                self._answer(ask, entry)
        if frame.draining:
            self.health.drain()

    def _answer(self, ask: Ask, entry: pb.DraftResponseEntry) -> None:
        event = entry.WhichOneof("event")
        if entry.row:
            self._take_tokens(ask, len(ask.block.token_ids), [entry.token_id], [entry.row])
        elif event == "tokens":
            self._take_tokens(ask, entry.tokens.offset, list(entry.tokens.token_ids), list(entry.tokens.rows))
        elif event == "end":
            self._take_end(ask, entry.end)
        elif event == "context_needed":
            self._open(ask, entry.context_needed.have_length)
        elif event == "error":
            self._take_error(ask, ENTRY_ERROR_FROM_PROTO.get(entry.error.reason))
        else:
            self.fail("an answer that nobody asked for")
            ask.finish(Ending.CUT)

    def _take_tokens(self, ask: Ask, offset: int, token_ids: list[int], rows: list[bytes]) -> None:
        try:
            ask.block.add(offset, token_ids, rows)
        except MalformedAnswer as error:
            self.fail(str(error))
            ask.finish(Ending.CUT)

    def _take_end(self, ask: Ask, end: pb.DraftEnd) -> None:
        predicted = end.context_source == pb.CONTEXT_SOURCE_PREDICTED
        work = DraftWork(end.queue_ns, end.compute_ns, end.batch_size, predicted)
        ask.block.end(DRAFT_END_FROM_PROTO.get(end.reason), work)
        if ask.want_scores:
            ask.block.delta_logprobs = tuple(end.delta_logprobs)
            ask.block.delta_guessed = tuple(map(bool, end.delta_guessed))
        ask.finish(Ending.COMPLETE)

    def _take_error(self, ask: Ask, reason: EntryErrorReason | None) -> None:
        if reason in (EntryErrorReason.UNKNOWN_SESSION, EntryErrorReason.CONTEXT_MISMATCH):
            self._open(ask, 0)
        elif reason is EntryErrorReason.CONTEXT_TOO_LONG:
            ask.finish(Ending.CONTEXT_FULL)
        elif reason is EntryErrorReason.DRAINING:
            self.health.drain()
            ask.finish(Ending.FAILED)
        else:
            self.fail(f"entry failed: {reason.name if reason else 'unknown reason'}")
            ask.finish(Ending.FAILED)

    def _open(self, ask: Ask, have_length: int) -> None:
        """Send the context from `have_length` on outside the stream, then the entry again; once for each ask."""
        if ask.opened or have_length > ask.block.position or ask.source.session_id in self._opening:
            self.fail("asked for a context twice")
            ask.finish(Ending.FAILED)
            return
        ask.opened = True
        session_id = ask.source.session_id
        task = asyncio.create_task(self._bring_context(ask, have_length), context=ask.context)
        self._opening[session_id] = task
        task.add_done_callback(lambda _: self._opening.pop(session_id, None))

    async def _bring_context(self, ask: Ask, start: int) -> None:
        assert self._stub is not None
        position = ask.block.position
        try:
            await self._stub.Open(open_messages(ask.source, start, position))
        except grpc.aio.AioRpcError as error:
            self.fail(f"context refused: {error.code().name}")
            ask.finish(Ending.FAILED)
            return
        left = ask.deadline - asyncio.get_running_loop().time()
        if not ask.done.done() and not self._send(ask, position, left):
            ask.finish(Ending.FAILED)


def _frame(entries: list[pb.DraftRequestEntry]) -> pb.DraftRequest:
    return pb.DraftRequest(entries=entries)

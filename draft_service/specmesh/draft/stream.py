"""One router's stream as the engine sees it, and the engine's events as entries on the wire."""

import asyncio
from collections import Counter

from specmesh.draft.block import Ended, Event, Failed, Needed, Tokens
from specmesh.draft.handles import Handles
from specmesh.draft.metrics import BlockWatch, NoBlockWatch, end_span
from specmesh.runtime.errors import MeshError, Overloaded
from specmesh.runtime.streams import FrameQueue
from specmesh.runtime.telemetry.entries import EntrySpans
from specmesh.runtime.telemetry.spans import Tracer
from specmesh.runtime.types import Rule
from specmesh.runtime.wire import DRAFT_END_TO_PROTO, ENTRY_ERROR_TO_PROTO, SOURCE_TO_PROTO
from specmesh.v1 import draft_service_pb2 as pb
from specmesh.v1 import entry_error_pb2 as error_pb

_NO_ENTRY = pb.DraftResponseEntry()


class RouterStream:
    """Entries that wait to be written, and the count of answers still owed."""

    def __init__(self, watch: BlockWatch | None = None, tracer: Tracer | None = None) -> None:
        """`watch` hears of every answer."""
        self.spans = EntrySpans(tracer)
        self._watch = watch or NoBlockWatch()
        self.queue: FrameQueue[pb.DraftResponseEntry] = FrameQueue()
        self.writing = asyncio.Lock()
        self.failure: MeshError | None = None
        self._owed: Counter[int] = Counter()
        self._handles = Handles()
        self._reading = True

    def announce(self) -> None:
        """Write a frame soon, even if there is no entry for it."""
        self._put(_NO_ENTRY)

    async def next_frame(self) -> list[pb.DraftResponseEntry]:
        """All entries that wait and fit one frame."""
        return [entry for entry in await self.queue.get() if entry is not _NO_ENTRY]

    def owe(self, session_id: int) -> None:
        """One more entry to answer."""
        self._owed[session_id] += 1

    def receive(self, event: Event) -> None:
        """Queue what the engine has to tell; a peer that does not read is cut off."""
        if isinstance(event.what, Ended):
            self._watch.ended(event.what)
        elif isinstance(event.what, Failed):
            self._watch.failed(event.what)
        if self.spans.any_open:
            end_span(self.spans, event)
        entry = event_to_entry(event)
        if self._owed[event.ask.session_id] > 0:  # a session that was closed needs no handle any more
            self._handles.shorten(entry, event)
        self._answer(event.ask.session_id, entry, last=not isinstance(event.what, Tokens))

    def answer(self, entry: pb.DraftResponseEntry, *, last: bool) -> None:
        """Queue an entry; `last` if nothing more will answer the same request entry."""
        self._answer(entry.session_id, entry, last=last)

    def _answer(self, session_id: int, entry: pb.DraftResponseEntry, *, last: bool) -> None:
        self._put(entry)
        if last:
            self._settle(session_id, 1)

    def fail(self, error: MeshError) -> None:
        """End the stream, and say why."""
        self.failure = error
        self.queue.close()

    def forgive(self, session_id: int) -> None:
        """The session was closed: what is in flight stays unanswered."""
        self.spans.cancel(session_id)
        self._handles.release(session_id)
        self._settle(session_id, self._owed[session_id])

    def finish(self) -> None:
        """The peer sends no more: the stream ends once all is answered."""
        self._reading = False
        self._close_if_done()

    def _put(self, entry: pb.DraftResponseEntry) -> None:
        try:
            self.queue.put(entry)
        except Overloaded as error:
            self.fail(error)

    def _settle(self, session_id: int, count: int) -> None:
        self._owed[session_id] -= count
        if self._owed[session_id] <= 0:
            del self._owed[session_id]
            self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._reading and not self._owed:
            self.queue.close()


def event_to_entry(event: Event) -> pb.DraftResponseEntry:
    """An event as it travels."""
    ask, what = event.ask, event.what
    if isinstance(what, Tokens):
        return pb.DraftResponseEntry(session_id=ask.session_id, position=ask.position, tokens=_tokens(what))
    if isinstance(what, Ended):
        end = _end(what, coupled=ask.rule is Rule.COUPLED)
        return pb.DraftResponseEntry(session_id=ask.session_id, position=ask.position, end=end)
    if isinstance(what, Needed):
        needed = pb.ContextNeeded(have_length=what.have_length)
        return pb.DraftResponseEntry(session_id=ask.session_id, position=ask.position, context_needed=needed)
    return failed_entry(ask.session_id, ask.position, what)


def failed_entry(session_id: int, position: int, failed: Failed) -> pb.DraftResponseEntry:
    """A failure as it travels; also of an entry that could not be read."""
    error = error_pb.EntryError(reason=ENTRY_ERROR_TO_PROTO[failed.reason], message=failed.message)
    return pb.DraftResponseEntry(session_id=session_id, position=position, error=error)


def _tokens(tokens: Tokens) -> pb.DraftedTokens:
    return pb.DraftedTokens(
        offset=tokens.offset,
        token_ids=[proposal.token_id for proposal in tokens.proposals],
        rows=[proposal.row for proposal in tokens.proposals if proposal.row is not None],
        draft_logprobs=[proposal.logprob for proposal in tokens.proposals],
    )


def _end(end: Ended, *, coupled: bool) -> pb.DraftEnd:
    return pb.DraftEnd(
        drafted_count=end.num_drafted,
        reason=DRAFT_END_TO_PROTO[end.reason],
        context_source=SOURCE_TO_PROTO[end.source],
        queue_ns=end.queue_ns,
        compute_ns=end.compute_ns,
        batch_size=end.batch_size,
        delta_logprobs=[score.logprob for score in end.scores],
        delta_guessed=bytes(score.guessed for score in end.scores) if coupled else b"",
    )

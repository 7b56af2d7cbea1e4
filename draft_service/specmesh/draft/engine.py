"""The engine: all sessions' blocks, tick by tick. Plain Python: no socket, no thread, no tensor.

Every entry submitted is answered by exactly one last event (`Ended`, `Needed` or `Failed`), unless its session is
closed or its stream is lost meanwhile. Tokens that were sampled are always sent: a block may stop before sampling or
after a token it keeps (specification 1.5).
"""

import logging
import math
from collections.abc import Callable, Sequence

from pydantic import Field

from specmesh.draft.admission import Admission, EngineLimits
from specmesh.draft.block import DraftBlock, Event, Failed, Receiver
from specmesh.draft.drafter import Advance, Drafter
from specmesh.draft.session import SessionStore
from specmesh.draft.sparse_law import can_shape
from specmesh.runtime.config import ConfigModel
from specmesh.runtime.errors import MeshError
from specmesh.runtime.types import DraftAsk, DraftEndReason, EntryErrorReason, Rule

_log = logging.getLogger(__name__)


class Stopping(ConfigModel):
    """When a block stops before its length. With neither, and an inline drafter, a block travels as one frame."""

    at_eos: bool | None = None
    """Stop after a token that ends a text. By default, drafts that take their time do and the others do not."""
    min_probability: float = Field(default=0.0, ge=0, le=1)
    """Stop after a token that the draft gave less than this."""


class DraftEngine:
    """Belongs to one thread. `clock` gives seconds and never goes back."""

    def __init__(
        self,
        drafter: Drafter,
        limits: EngineLimits,
        stopping: Stopping,
        clock: Callable[[], float],
    ) -> None:
        self._drafter = drafter
        self._limits = limits
        self._clock = clock
        at_eos = not drafter.inline if stopping.at_eos is None else stopping.at_eos
        self._eos = drafter.info.eos_token_ids if at_eos else frozenset()
        self._min_logprob = math.log(stopping.min_probability) if stopping.min_probability > 0 else -math.inf
        # A block that may stop early tells every token at once: held back, it would be late depending on its values.
        self._streaming = not drafter.inline or bool(self._eos) or stopping.min_probability > 0
        self._blocks: dict[int, DraftBlock] = {}
        self._events: list[Event] = []
        self.store = SessionStore(
            max_sessions=limits.max_sessions,
            max_bytes=limits.max_context_bytes,
            bytes_per_token=drafter.info.bytes_per_token,
            forgotten=drafter.release,
        )
        self._admission = Admission(limits, drafter, self.store)
        self.draining = False

    @property
    def num_blocks(self) -> int:
        """Blocks in flight."""
        return len(self._blocks)

    def take_events(self) -> list[Event]:
        """What there is to tell, oldest first; told once."""
        events, self._events = self._events, []
        return events

    def submit(self, ask: DraftAsk, receiver: Receiver, *, arrived: float, remaining_ms: int = 0) -> None:
        """Take an entry in. A block of the same session that is still in flight ends with what it has.

        `arrived`: when the entry came, by this engine's clock; its deadlines count from there, also when it had to wait
        for a tick to end.
        """
        if ask.session_id in self._blocks:
            self._finish(self._blocks[ask.session_id], DraftEndReason.DEADLINE)
        answer = self._admission.admit(
            ask,
            receiver,
            remaining_ms=remaining_ms,
            arrived=arrived,
            busy=self._blocks,
            draining=self.draining,
        )
        if isinstance(answer, DraftBlock):
            self._blocks[ask.session_id] = answer
        else:
            self._events.append(Event(receiver, ask, answer))

    def open(self, session_id: int, start: int, token_ids: Sequence[int]) -> int:
        """Hold `token_ids` from position `start` on; returns the length held. Raises `MeshError`."""
        if session_id in self._blocks:
            self._finish(self._blocks[session_id], DraftEndReason.DEADLINE)
        return self._admission.open(session_id, start, token_ids, busy=self._blocks, draining=self.draining)

    def close(self, session_id: int) -> None:
        """Forget a session; its block, if one is in flight, ends unsaid."""
        self._blocks.pop(session_id, None)
        self.store.forget(session_id)

    def detach(self, receiver: Receiver) -> None:
        """A stream is gone: its blocks end unsaid. Its sessions stay until others need their room."""
        for session_id in [s for s, block in self._blocks.items() if block.receiver is receiver]:
            del self._blocks[session_id]

    def tick(self) -> None:
        """Tokens for every block that has its turn: those that came first, `max_batch` at most."""
        started = self._clock()
        batch = self._take(started)
        if not batch:
            return
        try:
            advances = self._drafter.advance([block.turn for block in batch])
        except Exception as error:  # noqa: BLE001  a fault of the drafter costs these blocks, never the service
            _log.error("drafter failed", extra={"batch_size": len(batch)}, exc_info=error)
            advances = [Advance(failure=MeshError("the draft failed; the server's log has the rest"))] * len(batch)
            for block in batch:
                self._drafter.release(block.session.session_id)
        seconds = self._clock() - started
        for block, advance in zip(batch, advances, strict=True):
            block.took_part(seconds, len(batch))
            self._absorb(block, advance)

    @property
    def streaming(self) -> bool:
        """A block in flight tells its tokens one by one."""
        return self._streaming or any(map(self._streams, self._blocks.values()))

    def _streams(self, block: DraftBlock) -> bool:
        """Rows of penalties or bias take milliseconds, more or fewer by the tokens before: so one by one, too."""
        ask = block.ask
        sends_rows = not (self._drafter.info.one_hot or ask.sampling.greedy or ask.rule is Rule.COUPLED)
        return self._streaming or (sends_rows and not can_shape(ask.sampling))

    def _take(self, now: float) -> list[DraftBlock]:
        batch: list[DraftBlock] = []
        for block in list(self._blocks.values()):
            if len(batch) == self._limits.max_batch:
                break
            if now >= block.useful_until and not block.proposals:
                self._fail(block, Failed(EntryErrorReason.DEADLINE_EXCEEDED, "the entry's remaining time has passed"))
            elif now >= min(block.deadline, block.useful_until):
                self._finish(block, DraftEndReason.DEADLINE)
            else:
                block.started = now if block.started is None else block.started
                if not self._streams(block) and block.turn.token_counts is None:
                    block.turn.num_wanted = block.length - len(block.proposals)
                batch.append(block)
        return batch

    def _absorb(self, block: DraftBlock, advance: Advance) -> None:
        block.cold |= advance.cold
        if advance.failure is not None:
            self._fail(block, Failed(_reason_of(advance.failure), advance.failure.message))
            return
        if not advance.caught_up:
            return
        if not block.caught_up:
            block.caught_up, block.scores = True, advance.scores
            block.turn.score_from = None
        end = self._extend(block, advance)
        if end is not None:
            self._finish(block, end)
        elif self._streams(block):
            self._tell_tokens(block)

    def _extend(self, block: DraftBlock, advance: Advance) -> DraftEndReason | None:
        """Keep the tokens; the reason to end here, if there is one."""
        for proposal in advance.proposals:
            block.session.extend((proposal.token_id,))
            block.proposals.append(proposal)
            if proposal.token_id in self._eos:
                return DraftEndReason.EOS
            if len(block.proposals) < block.length and proposal.logprob < self._min_logprob:
                return DraftEndReason.CONFIDENCE
        if len(block.proposals) == block.length:
            return DraftEndReason.LENGTH if block.length == block.ask.block_length else DraftEndReason.CONTEXT
        return advance.end

    def _tell_tokens(self, block: DraftBlock) -> None:
        tokens = block.unsent()
        if tokens is not None:
            self._events.append(Event(block.receiver, block.ask, tokens))

    def _finish(self, block: DraftBlock, reason: DraftEndReason) -> None:
        self._tell_tokens(block)
        self._events.append(Event(block.receiver, block.ask, block.end(reason)))
        self._blocks.pop(block.ask.session_id, None)

    def _fail(self, block: DraftBlock, failure: Failed) -> None:
        self._tell_tokens(block)
        self._events.append(Event(block.receiver, block.ask, failure))
        self._blocks.pop(block.ask.session_id, None)


def _reason_of(error: MeshError) -> EntryErrorReason:
    return next((reason for reason in EntryErrorReason if reason.name == error.reason), EntryErrorReason.INTERNAL)

"""Who gets in: every check of an entry or a context before any work is done for it."""

import math
from collections.abc import Collection, Sequence

from pydantic import Field

from specmesh.draft.block import DraftBlock, EntryRefused, Failed, Needed, Receiver
from specmesh.draft.drafter import Drafter, Turn
from specmesh.draft.session import Session, SessionStore
from specmesh.runtime.config import ConfigModel
from specmesh.runtime.contract import DEFAULT_MAX_ROW, DEFAULT_ROW_MASS, OPEN_CHUNK_TOKENS
from specmesh.runtime.errors import ContextTooLong, Draining, InvalidValue
from specmesh.runtime.types import DraftAsk, EntryErrorReason


class EngineLimits(ConfigModel):
    """What an engine takes on. A request can lower `max_row`, and nothing else."""

    max_block_length: int = Field(default=16, ge=1)
    max_row: int = Field(default=DEFAULT_MAX_ROW, ge=1, le=4096)
    row_mass: float = Field(default=DEFAULT_ROW_MASS, gt=0, le=1)
    max_batch: int = Field(default=64, ge=1)
    """Sessions in one forward."""
    max_blocks: int = Field(default=4096, ge=1)
    """Blocks in flight; more are refused as OVERLOADED."""
    max_sessions: int = Field(default=8192, ge=1)
    max_context_bytes: int = Field(default=256 * 1024 * 1024, ge=1)
    """Contexts and their indices; the least recently used sessions are forgotten first. KV caches have their own."""
    max_scored_tokens: int = Field(default=64, ge=0)
    """A longer delta (a whole prompt) is not scored."""


class Admission:
    """Turns entries into blocks of work."""

    def __init__(self, limits: EngineLimits, drafter: Drafter, store: SessionStore) -> None:
        self._limits = limits
        self._drafter = drafter
        self._store = store

    def admit(
        self,
        ask: DraftAsk,
        receiver: Receiver,
        *,
        remaining_ms: int,
        arrived: float,
        busy: Collection[int],
        draining: bool,
    ) -> DraftBlock | Needed | Failed:
        """A block, or why there is none."""
        try:
            self._check(ask, num_blocks=len(busy))
            session = self._store.get(ask.session_id)
            if session is None and draining:
                raise EntryRefused(EntryErrorReason.DRAINING, "this replica takes no new sessions")
            needed = self._catch_up(ask, session, busy)
        except EntryRefused as refused:
            return refused.failure
        if isinstance(needed, Needed):
            return needed
        return self._block(ask, needed, receiver, remaining_ms, arrived)

    def open(
        self, session_id: int, start: int, token_ids: Sequence[int], *, busy: Collection[int], draining: bool
    ) -> int:
        """Hold a context from `start` on. A start beyond what is held changes nothing: the caller reads the length.

        Raises `InvalidValue`, `ContextTooLong`, `Draining`.
        """
        if start + len(token_ids) > self._drafter.info.max_context_tokens:
            limit = self._drafter.info.max_context_tokens
            raise ContextTooLong("header.length", f"the draft's context has {limit} tokens")
        if self._out_of_vocabulary(token_ids):
            raise InvalidValue("token_ids", f"must be below the vocabulary of {self._drafter.info.vocabulary_size}")
        session = self._store.get(session_id)
        if session is None and draining:
            raise Draining("this replica takes no new sessions")
        if start > (session.position if session else 0):
            return session.position if session else 0
        session = session or self._store.create(session_id)
        kept = session.replace(start, token_ids)
        self._drafter.truncate(session_id, kept)
        self._store.settle(session, busy)
        return session.position

    def _check(self, ask: DraftAsk, num_blocks: int) -> None:
        if ask.num_conditional:
            _refuse("conditional_count: conditional blocks are not served, must be 0")
        if ask.block_length > self._limits.max_block_length:
            _refuse(f"block_length: at most {self._limits.max_block_length}, got {ask.block_length}")
        if len(ask.delta_token_ids) > min(ask.position, OPEN_CHUNK_TOKENS):
            _refuse(f"delta_token_ids: at most position and {OPEN_CHUNK_TOKENS}, got {len(ask.delta_token_ids)}")
        if self._out_of_vocabulary(ask.delta_token_ids):
            _refuse(f"delta_token_ids: must be below the vocabulary of {self._drafter.info.vocabulary_size}")
        if ask.position >= self._drafter.info.max_context_tokens:
            limit = self._drafter.info.max_context_tokens
            raise EntryRefused(EntryErrorReason.CONTEXT_TOO_LONG, f"position: the draft's context has {limit} tokens")
        if ask.position == 0 and ask.block_length > 0:
            _refuse("position: must be at least 1 to draft from")
        if num_blocks >= self._limits.max_blocks:
            raise EntryRefused(EntryErrorReason.OVERLOADED, f"all {self._limits.max_blocks} blocks are in flight")

    def _out_of_vocabulary(self, token_ids: Sequence[int]) -> bool:
        size = self._drafter.info.vocabulary_size
        return bool(size and token_ids and max(token_ids) >= size)

    def _catch_up(self, ask: DraftAsk, session: Session | None, busy: Collection[int]) -> Session | Needed:
        base = ask.position - len(ask.delta_token_ids)
        if base > (session.position if session else 0):
            return Needed(session.position if session else 0)
        session = session or self._store.create(ask.session_id)
        matches, kept = session.catch_up(ask.position, ask.delta_token_ids, ask.context_hash)
        if not matches:
            self._store.forget(ask.session_id)
            return Needed(0)
        self._drafter.truncate(ask.session_id, kept)
        self._store.settle(session, busy)
        return session

    def _block(
        self, ask: DraftAsk, session: Session, receiver: Receiver, remaining_ms: int, arrived: float
    ) -> DraftBlock:
        length = min(ask.block_length, self._drafter.info.max_context_tokens - ask.position)
        cold, session.fresh = session.fresh, False
        return DraftBlock(
            ask=ask,
            session=session,
            receiver=receiver,
            turn=self._turn(ask, session, num_wanted=min(length, 1)),
            length=length,
            arrived=arrived,
            useful_until=arrived + remaining_ms / 1000 if remaining_ms else math.inf,
            deadline=arrived + ask.block_deadline_ms / 1000 if ask.block_deadline_ms else math.inf,
            cold=cold,
        )

    def _turn(self, ask: DraftAsk, session: Session, *, num_wanted: int) -> Turn:
        scored = ask.want_scores and 0 < len(ask.delta_token_ids) <= self._limits.max_scored_tokens
        return Turn(
            session_id=ask.session_id,
            tokens=session.tokens,
            block_start=ask.position,
            ask=ask,
            max_row=min(ask.max_row or self._limits.max_row, self._limits.max_row),
            row_mass=self._limits.row_mass,
            token_counts=session.counts() if ask.sampling.has_penalties else None,
            score_from=ask.position - len(ask.delta_token_ids) if scored else None,
            num_wanted=num_wanted,
        )


def _refuse(message: str) -> None:
    raise EntryRefused(EntryErrorReason.INVALID_VALUE, message)

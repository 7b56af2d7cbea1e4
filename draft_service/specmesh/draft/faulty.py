"""A fault injector for tests of the mesh: an honest draft with switchable faults. Never run it for real requests.

For example `kind = "faulty"` and `drafter = { kind = "table", settings = { path = "law.npz" }, nan_at_offset = 1 }`.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np
from pydantic import Field

from specmesh.draft.drafter import Advance, Drafter, Proposal, Turn, make_drafter
from specmesh.draft.settings import parse_settings
from specmesh.runtime.config import ConfigModel
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import decode_row, encode_row
from specmesh.runtime.types import DraftEndReason

HANGING_SECONDS = 0.005
"""Between two looks at a block that gets no further: hanging must not take a core from those who do not."""


class Lie(Enum):
    """What a draft can say that is not so."""

    NONE = "none"
    OTHER_TOKEN = "other_token"
    """The row's likeliest token, whatever the key says; a certain token is another one."""
    ALWAYS_ZERO = "always_zero"
    """Token 0, in a row that gives it weight 1 of 2^24."""
    OUTSIDE_ROW = "outside_row"
    """A row that leaves its own token out."""
    BROKEN_ROW = "broken_row"
    """A row whose weights do not sum to 2^24."""
    OUT_OF_VOCABULARY = "out_of_vocabulary"
    """A token that does not exist, for certain."""


class FaultySettings(ConfigModel):
    """Settings of `kind = "faulty"`; without any of the faults it is the honest draft in a thread."""

    kind: str
    """The honest draft's kind."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The honest draft's settings."""
    load_seconds: float = Field(default=0.0, ge=0)
    """Sleep before there is a draft."""
    token_seconds: float = Field(default=0.0, ge=0)
    """Sleep before every tick."""
    exit_after_tokens: int | None = Field(default=None, ge=0)
    """After this many tokens, which are written first, the process ends without a word."""
    hang_after_tokens: int | None = Field(default=None, ge=0)
    """After this many tokens no block gets any further."""
    raise_after_tokens: int | None = Field(default=None, ge=0)
    """After this many tokens every tick raises."""
    nan_at_offset: int | None = Field(default=None, ge=0)
    """At this offset of every block the draft's numbers are not finite."""
    lie: Lie = Lie.NONE


class FaultyDrafter:
    """Kind `faulty`."""

    inline = False

    def __init__(
        self,
        honest: Drafter,
        faults: FaultySettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._honest = honest
        self._faults = faults
        self._sleep = sleep
        self._written: Callable[[], None] = lambda: None
        self._num_tokens = 0
        self.info = replace(honest.info, kind="faulty")

    def advance(self, turns: Sequence[Turn]) -> list[Advance]:
        """As the honest draft, but for the faults."""
        if self._faults.token_seconds:
            self._sleep(self._faults.token_seconds)
        if self._reached(self._faults.exit_after_tokens):
            self._written()
            os._exit(1)
        if self._reached(self._faults.raise_after_tokens):
            raise RuntimeError("a fault was asked for")
        if self._reached(self._faults.hang_after_tokens):
            self._sleep(HANGING_SECONDS)
            return [Advance(caught_up=False)] * len(turns)
        advances = [self._spoiled(*pair) for pair in zip(turns, self._honest.advance(turns), strict=True)]
        self._num_tokens += sum(len(advance.proposals) for advance in advances)
        return advances

    def end_after(self, written: Callable[[], None]) -> None:
        """What a dying process waits for."""
        self._written = written

    def truncate(self, session_id: int, length: int) -> None:
        """As the honest draft."""
        self._honest.truncate(session_id, length)

    def release(self, session_id: int) -> None:
        """As the honest draft."""
        self._honest.release(session_id)

    def _reached(self, limit: int | None) -> bool:
        return limit is not None and self._num_tokens >= limit

    def _spoiled(self, turn: Turn, advance: Advance) -> Advance:
        # One token at most: a drafter in a thread streams.
        if not advance.proposals:
            return advance
        if turn.offset == self._faults.nan_at_offset:
            return replace(advance, proposals=(), end=DraftEndReason.NON_FINITE)
        lied = _lied(advance.proposals[0], self._faults.lie, self.info.vocabulary_size)
        return replace(advance, proposals=(lied,))


def _lied(honest: Proposal, lie: Lie, vocabulary_size: int) -> Proposal:
    if lie is Lie.NONE:
        return honest
    if lie is Lie.OUT_OF_VOCABULARY:
        return replace(honest, token_id=vocabulary_size, row=None)
    if honest.row is None:
        return replace(honest, token_id=0 if lie is Lie.ALWAYS_ZERO else (honest.token_id + 1) % (vocabulary_size or 2))
    weights = dict(zip(*(array.tolist() for array in decode_row(honest.row)), strict=True))
    if lie is Lie.OTHER_TOKEN:
        return replace(honest, token_id=max(weights, key=weights.__getitem__))
    if lie is Lie.BROKEN_ROW:
        weights[honest.token_id] += 1
        return replace(honest, row=_encoded(weights))
    token = 0 if lie is Lie.ALWAYS_ZERO else honest.token_id
    weights.pop(token, None)
    rest = max(weights, key=weights.__getitem__, default=token + 1)
    weights[rest] = 0
    weights |= {0: 1} if lie is Lie.ALWAYS_ZERO else {}
    weights[rest] = ROW_TOTAL - sum(weights.values())
    return replace(honest, token_id=token, row=_encoded(weights))


def _encoded(weights: Mapping[int, int]) -> bytes:
    ids = sorted(weights)
    return encode_row(np.array(ids), np.array([weights[token] for token in ids]))


def make(settings: Mapping[str, Any]) -> FaultyDrafter:
    """A faulty drafter. Raises `ConfigError` naming the setting."""
    faults = parse_settings(FaultySettings, settings)
    time.sleep(faults.load_seconds)
    return FaultyDrafter(make_drafter(faults.kind, faults.settings), faults)

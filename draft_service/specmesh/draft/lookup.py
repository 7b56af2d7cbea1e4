"""Prompt lookup: propose what followed the last time the context ended like this.

A pure function of the context, drafted tokens included, so it is deterministic, its distribution is one-hot, and every
replica proposes the same. The index is a chain through earlier occurrences of the last `min_match` tokens (as in LZ77):
a token is pushed and popped in constant time.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from specmesh.draft.drafter import Advance, DrafterInfo, Proposal, Score, Turn
from specmesh.draft.settings import parse_settings
from specmesh.runtime.config import ConfigModel
from specmesh.runtime.given import KeyFault
from specmesh.runtime.types import DraftEndReason

BYTES_PER_TOKEN = 160
"""About what an indexed token takes: its dictionary entry, its chain entry and itself."""


class LookupSettings(ConfigModel):
    """Settings of `kind = "lookup"`."""

    min_match: int = Field(default=1, ge=1, le=8)
    """Shortest end of the context that must recur. On code, 1 is right for 33 % of all tokens and 42 % of those it
    proposes, 2 for 26 % and 56 %."""
    max_match: int = Field(default=8, ge=1, le=64)
    """Longer matches than this are not told apart; the latest one wins."""
    max_candidates: int = Field(default=32, ge=1)
    """Earlier occurrences looked at, the latest first; more find nothing better."""
    max_context_tokens: int = Field(default=131_072, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_match > self.max_match:
            raise KeyFault("min_match", "must not exceed max_match")
        return self


class MatchIndex:
    """Occurrences of every run of `min_match` tokens in one context."""

    __slots__ = ("_latest", "_previous", "_settings", "tokens")

    def __init__(self, settings: LookupSettings) -> None:
        self._settings = settings
        self.tokens = array("I")
        self._latest: dict[bytes, int] = {}
        self._previous = array("i")

    def push(self, token: int) -> None:
        """Append one token. `_previous[i]` is where the run that ends before i + 1 ended before, or -1."""
        self.tokens.append(token)
        key = self._key()
        self._previous.append(self._latest.get(key, -1))
        self._latest[key] = len(self.tokens)

    def pop(self) -> None:
        """Undo the last push."""
        key, before = self._key(), self._previous.pop()
        if before < 0:
            del self._latest[key]
        else:
            self._latest[key] = before
        self.tokens.pop()

    def resize(self, length: int) -> None:
        """Pop down to `length` tokens; nothing when there are fewer."""
        while len(self.tokens) > length:
            self.pop()

    def predict(self) -> int | None:
        """The token after the longest, then latest, earlier occurrence of the context's end; None without one."""
        if not self.tokens:
            return None
        end, best_end, best_length = self._previous[-1], -1, self._settings.min_match - 1
        for _ in range(self._settings.max_candidates):
            if end < 0:
                break
            length = self._match_length(end)
            if length > best_length:
                best_end, best_length = end, length
            if length >= self._settings.max_match:
                break
            end = self._previous[end - 1]
        return self.tokens[best_end] if best_end >= 0 else None

    def matches(self) -> list[tuple[int, int]]:
        """(length of the match, token that followed) of earlier occurrences of the context's end, latest first."""
        found: list[tuple[int, int]] = []
        end = self._previous[-1] if self.tokens else -1
        while end >= 0 and len(found) < self._settings.max_candidates:
            found.append((self._match_length(end), self.tokens[end]))
            end = self._previous[end - 1]
        return found

    def _key(self) -> bytes:
        return self.tokens[-self._settings.min_match :].tobytes()

    def _match_length(self, end: int) -> int:
        """How many tokens before `end` equal the context's last ones, up to `max_match`."""
        tokens, at = self.tokens, len(self.tokens)
        limit = min(self._settings.max_match, end)
        length = 0
        while length < limit and tokens[end - 1 - length] == tokens[at - 1 - length]:
            length += 1
        return length


class MatchDrafter(ABC):
    """A drafter that keeps an index of each session's tokens."""

    inline = True

    def __init__(self, settings: LookupSettings) -> None:
        self._settings = settings
        self._indices: dict[int, MatchIndex] = {}

    def advance(self, turns: Sequence[Turn]) -> list[Advance]:
        """All tokens for each turn; CONFIDENCE where there is nothing to say."""
        return [self._advance(turn, self._index_of(turn.session_id)) for turn in turns]

    def truncate(self, session_id: int, length: int) -> None:
        """The session's tokens beyond `length` are no more."""
        if session_id in self._indices:
            self._indices[session_id].resize(length)

    def release(self, session_id: int) -> None:
        """Forget a session."""
        self._indices.pop(session_id, None)

    def _index_of(self, session_id: int) -> MatchIndex:
        index = self._indices.get(session_id)
        if index is None:
            index = self._indices[session_id] = MatchIndex(self._settings)
        return index

    @abstractmethod
    def _advance(self, turn: Turn, index: MatchIndex) -> Advance:
        """For one session, whose index may be behind its tokens."""


class LookupDrafter(MatchDrafter):
    """Kind `lookup`; ids have no meaning to it, so it serves any target."""

    def __init__(self, settings: LookupSettings) -> None:
        super().__init__(settings)
        self.info = DrafterInfo(
            kind="lookup",
            name=f"prompt lookup, {settings.min_match} to {settings.max_match} tokens",
            model_digest=hashlib.sha256(f"lookup 1 {settings.model_dump_json()}".encode()).hexdigest(),
            max_context_tokens=settings.max_context_tokens,
            bytes_per_token=BYTES_PER_TOKEN,
            one_hot=True,
        )

    def _advance(self, turn: Turn, index: MatchIndex) -> Advance:
        scores = _feed(index, turn)
        proposals: list[Proposal] = []
        while len(proposals) < turn.num_wanted:
            token = index.predict()
            if token is None:
                return Advance(scores=scores, proposals=proposals, end=DraftEndReason.CONFIDENCE)
            proposals.append(Proposal(token, None, 0.0))
            index.push(token)
        return Advance(scores=scores, proposals=proposals)


def _feed(index: MatchIndex, turn: Turn) -> tuple[Score, ...]:
    """Push what the index lacks; what is to be scored is compared with the prediction before it."""
    first = len(turn.tokens) if turn.score_from is None else turn.score_from
    index.resize(first)
    scores = []
    for token in turn.tokens[len(index.tokens) :]:
        if len(index.tokens) >= first:
            guessed = index.predict() == token
            scores.append(Score(0.0 if guessed else -math.inf, guessed))
        index.push(token)
    return tuple(scores)


def make(settings: Mapping[str, Any]) -> LookupDrafter:
    """A prompt-lookup drafter. Raises `ConfigError` naming the setting."""
    return LookupDrafter(parse_settings(LookupSettings, settings))

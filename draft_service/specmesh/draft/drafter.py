"""The interface behind which every kind of draft stands, and the one place where kinds are registered.

Another kind is one more module with a function `make(settings) -> Drafter`, and one more line in `KINDS`.
Its settings, where they can be imported without torch, are one more line in `settings.SETTINGS`: mistakes in them are
then told before anything loads.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from specmesh.runtime.errors import InvalidValue, MeshError
from specmesh.runtime.types import DraftAsk, DraftEndReason

KINDS = {
    "hf": "specmesh.draft.hf",
    "lookup": "specmesh.draft.lookup",
    "table": "specmesh.draft.table",
}
"""Kind to module; imported when asked for, so that prompt lookup runs without torch."""
FOR_TESTS = {"faulty": "specmesh.draft.faulty"}
"""Kinds that no message offers."""


# What follows is made or read for every token, and so is not frozen: that alone costs a microsecond.


@dataclass(slots=True)
class Turn:
    """One session's share of one tick: catch up with `tokens`, score some of them, propose more.

    `tokens` is the context up to `block_start` and what the block has proposed since. `token_counts` counts all of
    `tokens`, and is None when nothing is penalised. Wanted scores are of `tokens[score_from:block_start]`.
    The engine keeps one turn per block; `tokens` and `token_counts` grow with it.
    """

    session_id: int
    tokens: Sequence[int]
    block_start: int
    ask: DraftAsk
    max_row: int
    row_mass: float
    token_counts: Mapping[int, int] | None
    score_from: int | None
    num_wanted: int
    """Tokens that may be proposed in this tick; 0 = only catch up. 1 unless all can go into one frame."""

    @property
    def offset(self) -> int:
        """Offset in the block of the first token to propose."""
        return len(self.tokens) - self.block_start

    def counts_before(self, length: int) -> Counter[int] | None:
        """Token counts of the first `length` tokens only; None when nothing is penalised."""
        if self.token_counts is None:
            return None
        counts = Counter(self.token_counts)
        counts.subtract(self.tokens[length:])
        return counts


@dataclass(slots=True)
class Proposal:
    """One drafted token: `row` is None when its distribution is one-hot; `logprob` is ln of its probability."""

    token_id: int
    row: bytes | None
    logprob: float


@dataclass(slots=True)
class Score:
    """ln D of a given token in the row as it would have been sent (-inf outside); would COUPLED have guessed it."""

    logprob: float
    guessed: bool


@dataclass(slots=True)
class Advance:
    """What became of a turn.

    Not caught up: the same turn again, please. Caught up and tokens wanted: at least one of `proposals`, or `end`: why
    there are no more (nothing was sampled there). `cold`: the context had to be taken in from its beginning. `failure`
    ends the block.
    """

    caught_up: bool = True
    proposals: Sequence[Proposal] = ()
    end: DraftEndReason | None = None
    scores: tuple[Score, ...] = ()
    cold: bool = False
    failure: MeshError | None = None


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What a drafter says of itself; `vocabulary_size` 0 when ids have no meaning to it."""

    kind: str
    name: str
    model_digest: str
    max_context_tokens: int
    vocabulary_size: int = 0
    tokenizer_digest: str = ""
    vocabulary_hashes: bytes = b""
    eos_token_ids: frozenset[int] = frozenset()
    bytes_per_token: int = 4
    one_hot: bool = False
    """It never sends rows."""


class Drafter(Protocol):
    """Proposes tokens for many sessions at once. Called from one thread only.

    What it keeps of a session is soft: it may forget any of it at any time, and must then catch up from `tokens`.
    """

    info: DrafterInfo
    inline: bool
    """So cheap that it runs in the event loop; otherwise it gets a thread."""

    def advance(self, turns: Sequence[Turn]) -> Sequence[Advance]:
        """One tick: tokens for each turn, in order. Never raises for the sake of one session."""
        ...

    def truncate(self, session_id: int, length: int) -> None:
        """The session's tokens beyond `length` are no more."""
        ...

    def release(self, session_id: int) -> None:
        """Forget a session; unknown ones are fine."""
        ...


@runtime_checkable
class EndsProcess(Protocol):
    """A drafter that ends its process in the middle of a block, for tests."""

    def end_after(self, written: Callable[[], None]) -> None:
        """It calls `written` first, which returns when all that was told before has been written."""
        ...


def make_drafter(kind: str, settings: Mapping[str, Any]) -> Drafter:
    """A drafter of a registered kind. Raises `InvalidValue` for a kind or a setting that does not exist."""
    module = (KINDS | FOR_TESTS).get(kind)
    if module is None:
        raise InvalidValue("kind", f"unknown kind of draft, must be one of {', '.join(sorted(KINDS))}")
    drafter: Drafter = import_module(module).make(settings)
    return drafter

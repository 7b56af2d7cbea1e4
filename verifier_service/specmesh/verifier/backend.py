"""What the engine needs of whatever computes: open, verify a batch, close. Another engine can take its place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specmesh.kernels.inputs import VerifyInput, VerifyOutcome
from specmesh.verifier.session import SessionKey


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class Work:
    """One session's share of a forward pass: `token_ids` at positions from `start` on, all before them being cached.

    With `verify`, the last `1 + len(verify.draft_token_ids)` of them are the context's last token and the block.
    """

    key: SessionKey
    token_ids: Sequence[int]
    start: int
    verify: VerifyInput | None = None
    num_top: int | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """One outcome per work with a block, in order, and where the time went."""

    outcomes: Sequence[VerifyOutcome]
    forward_ns: int = 0
    verify_ns: int = 0


class Backend(Protocol):
    """Called from one thread only. An exception from `verify` fails the sessions of that batch and no others."""

    vocabulary_size: int
    max_context_tokens: int

    @property
    def num_blocks(self) -> int:
        """Cache blocks in all."""

    @property
    def num_free_blocks(self) -> int:
        """Cache blocks that no session holds."""

    def open(self, key: SessionKey, num_tokens: int) -> bool:
        """Reserve memory for a context of `num_tokens`; False and no change when it is not there now."""

    def verify(self, batch: Sequence[Work]) -> Verified:
        """One forward pass over the whole batch, then the verification of its blocks."""

    def close(self, key: SessionKey) -> None:
        """Free all that the session holds."""

"""What the engine needs of whatever computes: open, verify a batch, close. Another engine can take its place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specmesh.kernels.inputs import VerifyInput, VerifyOutcome
from specmesh.verifier.session import Session, SessionKey


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class Work:
    """One session's share of a forward pass: `token_ids` at positions from `start` on, all before them being cached.

    With `verify`, the last `1 + len(verify.draft_token_ids)` of them are the context's last token and the block. It is
    the session's own and is written anew for its next tick: a backend is done with it when `Backend.verify` returns. Of
    the session, which goes on changing, a backend reads `key` and `spec`, which do not, and writes nothing.
    """

    session: Session
    token_ids: Sequence[int]
    start: int
    verify: VerifyInput | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """One outcome per work with a block, in order, and where the time went."""

    outcomes: Sequence[VerifyOutcome]
    forward_ns: int = 0
    verify_ns: int = 0


class OutOfMemory(Exception):
    """The device has no memory for this batch; a smaller one may fit. Nothing has changed but what the batch wrote."""


class BackendLost(Exception):
    """Nothing can be computed any more, for anybody: the engine ends."""


class Backend(Protocol):
    """Called from one thread only.

    An exception from `verify` fails the sessions of that batch and no others; after `OutOfMemory` it is tried in parts,
    and after `BackendLost` the engine ends.
    """

    vocabulary_size: int
    max_context_tokens: int

    @property
    def num_blocks(self) -> int:
        """Cache blocks in all."""

    @property
    def num_free_blocks(self) -> int:
        """Cache blocks that no session holds."""

    def open(self, key: SessionKey, salt: bytes, context: Sequence[int], num_tokens: int) -> int | None:
        """Take memory for `num_tokens` tokens that begin with `context`.

        Returns how many tokens of `context` are in it already, never all; None and no change when the memory is not
        there now. Sessions of different `salt` share nothing.
        """

    def grow(self, key: SessionKey, num_tokens: int) -> int:
        """Memory for `num_tokens` tokens in all.

        Returns for how many there is memory then; fewer than asked, and no change, when it is not there now.
        """

    def trim(self, key: SessionKey, num_tokens: int) -> None:
        """Give back what is held beyond `num_tokens`."""

    def commit(self, key: SessionKey, context: Sequence[int], num_cached: int) -> int:
        """The first `num_cached` tokens of `context` are final and computed: others may share them.

        Returns of how many tokens another call would have something new to share.
        """

    def verify(self, batch: Sequence[Work]) -> Verified:
        """One forward pass over the whole batch, then the verification of its blocks."""

    def close(self, key: SessionKey, *, forget: bool = False) -> None:
        """Free all that the session holds. `forget`: what is in it shall not be shared any more."""

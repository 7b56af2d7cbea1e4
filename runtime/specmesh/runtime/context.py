"""The hash by which a router and a draft agree that they hold the same context."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np


class ContextHasher:
    """BLAKE2b-64 over little-endian uint32 ids, fed as the context grows."""

    __slots__ = ("_state", "length")

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self._state = blake2b(digest_size=8)
        self.length = 0
        self.extend(token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens."""
        words = np.fromiter(token_ids, dtype="<u4")
        self._state.update(words.tobytes())
        self.length += len(words)

    def copy(self) -> "ContextHasher":
        """The same context, to be continued otherwise."""
        other = ContextHasher.__new__(ContextHasher)
        other._state = self._state.copy()
        other.length = self.length
        return other

    def value(self) -> int:
        """The hash as an unsigned 64-bit integer (little-endian digest)."""
        return int.from_bytes(self._state.digest(), "little")


def context_hash(token_ids: Iterable[int]) -> int:
    """Hash of a whole context."""
    return ContextHasher(token_ids).value()

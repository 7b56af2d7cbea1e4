"""Which verifier has seen the beginning of a context before, and may hold it in its prefix cache (pure)."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np

PREFIX_TOKENS = 64
"""Beginnings are told apart in steps of so many tokens; shorter ones are not worth a detour."""
MAX_PREFIXES = 65_536
"""Kept by one router, the latest; about 10 MB."""


class PrefixAffinity:
    """Beginnings and the address that had them last. They are apart by caller, as in the verifiers' caches."""

    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._addresses: OrderedDict[bytes, str] = OrderedDict()

    def note(self, address: str, salt: bytes, context: Sequence[int]) -> None:
        """The verifier at `address` has taken this context in."""
        for digest in _digests(salt, context):
            self._addresses[digest] = address
            self._addresses.move_to_end(digest)
        while len(self._addresses) > self._max_prefixes:
            self._addresses.popitem(last=False)

    def find(self, salt: bytes, context: Sequence[int]) -> str | None:
        """Who had the longest beginning of this context; None when nobody had one worth going for."""
        found = None
        for digest in _digests(salt, context):
            address = self._addresses.get(digest)
            if address is None:
                break
            found = address
        return found


def _digests(salt: bytes, context: Sequence[int]) -> Iterator[bytes]:
    """One for each beginning of a multiple of `PREFIX_TOKENS`, the shortest first."""
    state = blake2b(len(salt).to_bytes(8, "little") + salt, digest_size=16)
    size = 4 * PREFIX_TOKENS
    words = np.fromiter(context, dtype="<u4").tobytes()
    for end in range(size, len(words) + 1, size):
        state.update(words[end - size : end])
        yield state.digest()

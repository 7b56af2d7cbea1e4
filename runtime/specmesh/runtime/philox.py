"""Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

NumPy form; `specmesh.kernels.reference.philox` is the torch form and gives the same integers.
Every number of the mesh is a function of a 64-bit key and the counter
(block start position, offset in the block, purpose, token id or lane) and of nothing else.
"""

import secrets
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specmesh.runtime.contract import ROW_TOTAL_BITS, Purpose

UInt32Array = NDArray[np.uint32]

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10
_LOW = 0xFFFFFFFF


def draw_key() -> int:
    """A fresh 64-bit key from the system's entropy."""
    return secrets.randbits(64)


def philox(key: int, counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]) -> tuple[UInt32Array, ...]:
    """Four uint32 words per counter; the four counter words broadcast against each other."""
    words = (np.asarray(word, dtype=np.uint64) for word in np.broadcast_arrays(*counter))
    return tuple(word.astype(np.uint32) for word in _rounds(key, *words))


def draft_draw(draft_key: int, block_start: int, offset: int) -> int:
    """The draw in [0, 2^24) that chooses the token at one offset of a block from its row."""
    word: int = _rounds(draft_key, block_start, offset, int(Purpose.DRAFT), 0)[0]
    return word >> (32 - ROW_TOTAL_BITS)


def draft_draws(draft_key: int, block_start: int, count: int) -> NDArray[np.int64]:
    """The draws of the offsets 0..count-1."""
    # A block is short: integers of Python are an order of magnitude faster than arrays of so few.
    return np.array([draft_draw(draft_key, block_start, offset) for offset in range(count)], dtype=np.int64)


def _rounds(key: int, c0: Any, c1: Any, c2: Any, c3: Any) -> tuple[Any, ...]:  # noqa: ANN401  what comes in goes out
    """Ten rounds, on integers or on arrays of uint64."""
    k0, k1 = key & _LOW, key >> 32
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _LOW, (p0 >> 32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3

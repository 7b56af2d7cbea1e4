"""Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

NumPy form; `specmesh.kernels.reference.philox` is the torch form and gives the same integers.
Every number of the mesh is a function of a 64-bit key and the counter
(block start position, offset in the block, purpose, token id or lane) and of nothing else.
"""

import secrets

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specmesh.runtime.contract import ROW_TOTAL_BITS, Purpose

UInt32Array = NDArray[np.uint32]

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def draw_key() -> int:
    """A fresh 64-bit key from the system's entropy."""
    return secrets.randbits(64)


def philox(key: int, counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]) -> tuple[UInt32Array, ...]:
    """Four uint32 words per counter; the four counter words broadcast against each other."""
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in np.broadcast_arrays(*counter))
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL_0) & 0xFFFFFFFF, (k1 + _WEYL_1) & 0xFFFFFFFF
    return tuple(word.astype(np.uint32) for word in (c0, c1, c2, c3))


def draft_draws(draft_key: int, block_start: int, count: int) -> NDArray[np.int64]:
    """The draws in [0, 2^24) that choose the tokens at offsets 0..count-1 of a block from their rows."""
    words = philox(draft_key, (block_start, np.arange(count), int(Purpose.DRAFT), 0))
    return (words[0] >> np.uint32(32 - ROW_TOTAL_BITS)).astype(np.int64)

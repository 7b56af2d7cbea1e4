"""A row on the wire: a draft's sparse integer distribution at one position (specification 1.2).

Bytes: little-endian uint32 ids in strictly ascending order, then their little-endian uint32 weights (>= 1), which sum
to exactly 2^24. The row sent is the row sampled from, so it is the draft's true distribution.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.philox import draft_draws
from specmesh.runtime.types import BlockRefusal

RowArrays = tuple[NDArray[np.uint32], NDArray[np.uint32]]


def encode_row(ids: NDArray[np.integer], weights: NDArray[np.integer]) -> bytes:
    """Bytes of a row; ids ascending, weights of the same length."""
    return np.concatenate((ids, weights)).astype("<u4").tobytes()


def decode_row(row: bytes) -> RowArrays:
    """(ids, weights) as views of the bytes; nothing is checked."""
    words = np.frombuffer(row, dtype="<u4")
    return words[: len(words) // 2], words[len(words) // 2 :]


def draw_from_row(weights: NDArray[np.integer], draw: int) -> int:
    """Index of the first id whose cumulative weight exceeds `draw` (in [0, 2^24))."""
    return int(np.searchsorted(np.cumsum(weights, dtype=np.int64), draw, side="right"))


def check_block(
    token_ids: Sequence[int], rows: Sequence[bytes], *, vocabulary_size: int, draft_key: int, block_start: int
) -> tuple[BlockRefusal | None, list[RowArrays]]:
    """What is wrong with a block, if anything, and its decoded rows (empty when every row is one-hot).

    Each token is derived again from its row and the draft key: a draft that declares one distribution and samples
    another is caught here.
    """
    if any(not 0 <= token < vocabulary_size for token in token_ids):
        return BlockRefusal.TOKEN_OUT_OF_VOCABULARY, []
    if not rows:
        return None, []
    if len(rows) != len(token_ids):
        return BlockRefusal.MALFORMED_ROW, []
    decoded: list[RowArrays] = []
    for token, row, draw in zip(token_ids, rows, draft_draws(draft_key, block_start, len(rows)).tolist(), strict=True):
        if not row or len(row) % 8:
            return BlockRefusal.MALFORMED_ROW, []
        ids, weights = decode_row(row)
        if np.any(ids[1:] <= ids[:-1]) or weights.min() < 1 or int(weights.sum(dtype=np.int64)) != ROW_TOTAL:
            return BlockRefusal.MALFORMED_ROW, []
        if ids[-1] >= vocabulary_size:
            return BlockRefusal.TOKEN_OUT_OF_VOCABULARY, []
        at = int(np.searchsorted(ids, token))
        if at == len(ids) or ids[at] != token:
            return BlockRefusal.TOKEN_OUT_OF_ROW, []
        if draw_from_row(weights, draw) != at:
            return BlockRefusal.RESAMPLE_MISMATCH, []
        decoded.append((ids, weights))
    return None, decoded

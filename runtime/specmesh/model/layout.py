"""Where the tokens of one ragged forward lie, as arrays: for all sessions at once, for a tick has many. No tensors."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from specmesh.model.blocks import BLOCK_TOKENS
from specmesh.model.spans import Span

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layout:
    """By session [B]: `lengths` (tokens fed), `starts` (position of the first), `first_rows` (its row of the flat row),
    `table_starts` (where its blocks begin in `tables` [M] int32), `skipped` (tokens whose logits are not wanted).
    By token [N]: `ids`, `positions`, `slots` (place in the cache).
    """

    lengths: Ints
    starts: Ints
    first_rows: Ints
    table_starts: Ints
    skipped: Ints
    tables: NDArray[np.int32]
    ids: Ints
    positions: Ints
    slots: Ints

    @property
    def wanted_rows(self) -> Ints:
        """Rows whose logits are wanted, in order."""
        return _ranges(self.first_rows + self.skipped, self.lengths - self.skipped)

    def tiles(self, queries: int) -> NDArray[np.int32]:
        """`tiles` [T, 4] of the compiled attention, of at most so many queries each."""
        counts = -(-self.lengths // queries)
        at = _ranges(np.zeros_like(counts), counts) * queries
        session = np.repeat(np.arange(len(counts)), counts)
        fields = np.empty((len(at), 4), np.int32)
        fields[:, 0] = self.first_rows[session] + at
        fields[:, 1] = self.starts[session] + at
        fields[:, 2] = np.minimum(self.lengths[session] - at, queries)
        fields[:, 3] = self.table_starts[session]
        return fields


def layout_of(spans: Sequence[Span]) -> Layout:
    """Of spans in this order."""
    tables = [as_table(span.block_table) for span in spans]
    lengths = _by_session([len(span.token_ids) for span in spans])
    starts = _by_session([span.start for span in spans])
    sizes = _by_session([len(table) for table in tables])
    blocks = np.frombuffer(b"".join(tables), np.int32)
    table_starts = np.cumsum(sizes) - sizes
    positions = _ranges(starts, lengths)
    held = blocks[np.repeat(table_starts, lengths) + positions // BLOCK_TOKENS].astype(np.int64)
    return Layout(
        lengths=lengths,
        starts=starts,
        first_rows=np.cumsum(lengths) - lengths,
        table_starts=table_starts,
        skipped=_by_session([span.first_row for span in spans]),
        tables=blocks,
        ids=np.fromiter(chain.from_iterable(span.token_ids for span in spans), np.int64, len(positions)),
        positions=positions,
        slots=held * BLOCK_TOKENS + positions % BLOCK_TOKENS,
    )


def as_table(blocks: Sequence[int]) -> "array[int]":
    """Blocks in the form that is copied as it is; a session's own table has it already."""
    return blocks if isinstance(blocks, array) else array("i", blocks)


def _by_session(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def _ranges(firsts: Ints, counts: Ints) -> Ints:
    """`counts[b]` numbers from `firsts[b]` on, for each b in turn."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(firsts - ends + counts, counts)

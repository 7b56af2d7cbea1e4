"""What the verifier asks of a target model, and a target that is a table (tests, benchmarks, trying things out)."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specmesh.model.blocks import BLOCK_TOKENS
from specmesh.model.spans import Span


class TargetModel(Protocol):
    """A causal model over a paged cache; `specmesh.model.paged.PagedModel` is one."""

    vocabulary_size: int
    max_context_tokens: int

    @property
    def bytes_per_block(self) -> int:
        """Bytes of the cache per block of 16 tokens."""

    def allocate_cache(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks of 16 tokens."""

    def copy_block(self, source: int, target: int) -> None:
        """Make the block `target` hold what `source` holds."""

    def forward(self, spans: Sequence[Span]) -> Tensor:
        """Feed the spans, write their keys and values; raw logits [R, W] of the rows wanted, spans in order."""


class TableTarget:
    """Logits as a table over the last two tokens: float32 [V, V, W], by the second-to-last token, then the last.

    A context of one token has no second-to-last one: id 0 stands in. The cache holds token ids, and the two tokens are
    read back from it, so a stale row, a wrong block table or a missed rollback shows in the logits.
    `delay_seconds` is slept per forward: an engine of known step time, for benchmarks.
    """

    def __init__(
        self,
        logits: NDArray[np.float32],
        *,
        vocabulary_size: int | None = None,
        max_context_tokens: int = 4096,
        delay_seconds: float = 0.0,
    ) -> None:
        """Raises ValueError when the table has the wrong shape."""
        if logits.ndim != 3 or logits.shape[0] != logits.shape[1] or logits.shape[2] < logits.shape[0]:
            raise ValueError(f"logits: expected [V, V, W >= V], got shape {logits.shape}")
        self.vocabulary_size = logits.shape[0] if vocabulary_size is None else vocabulary_size
        if not 0 < self.vocabulary_size <= logits.shape[0]:
            raise ValueError(f"vocabulary_size: expected 1 to {logits.shape[0]}, got {vocabulary_size}")
        self.max_context_tokens = max_context_tokens
        self._logits = logits.astype(np.float32, copy=False)
        self._delay_seconds = delay_seconds
        self._cache = np.empty(0, dtype=np.int64)

    @property
    def bytes_per_block(self) -> int:
        """One int64 per token."""
        return BLOCK_TOKENS * 8

    def allocate_cache(self, num_blocks: int) -> None:
        """Slots for `num_blocks` blocks."""
        self._cache = np.zeros(num_blocks * BLOCK_TOKENS, dtype=np.int64)

    def copy_block(self, source: int, target: int) -> None:
        """Copy the tokens of one block."""
        blocks = self._cache.reshape(-1, BLOCK_TOKENS)
        blocks[target] = blocks[source]

    def forward(self, spans: Sequence[Span]) -> Tensor:
        """Raw logits [R, W] of the rows wanted, as `PagedModel.forward`."""
        if self._delay_seconds:
            time.sleep(self._delay_seconds)
        slots: list[int] = []
        before: list[int] = []
        wanted: list[bool] = []
        for span in spans:
            positions = range(span.start, span.start + len(span.token_ids))
            slots += [_slot(span.block_table, position) for position in positions]
            before += [_slot(span.block_table, position - 1) if position else -1 for position in positions]
            wanted += [index >= span.first_row for index in range(len(span.token_ids))]
        self._cache[slots] = [token for span in spans for token in span.token_ids]
        rows = np.array(wanted, dtype=bool)
        last, second = np.array(slots)[rows], np.array(before)[rows]
        second_ids = np.where(second >= 0, self._cache[second], 0)
        return torch.from_numpy(self._logits[second_ids, self._cache[last]])


def _slot(table: Sequence[int], position: int) -> int:
    block, offset = divmod(position, BLOCK_TOKENS)
    return table[block] * BLOCK_TOKENS + offset


def save_table(path: Path, logits: NDArray[np.float32], *, vocabulary_size: int | None = None) -> None:
    """Write a table that `load_table` reads."""
    size = logits.shape[0] if vocabulary_size is None else vocabulary_size
    np.savez(path, logits=logits.astype(np.float32), vocabulary_size=size)


def load_table(path: Path, *, max_context_tokens: int = 4096, delay_seconds: float = 0.0) -> TableTarget:
    """Read `logits` (float32 [V, V, W]) and, when there, `vocabulary_size` from an .npz file.

    Raises OSError, or ValueError naming what is wrong with the file.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except BadZipFile as error:
        raise ValueError(f"{path}: {error}") from None
    if "logits" not in arrays:
        raise ValueError(f"{path}: has no array `logits`")
    return TableTarget(
        arrays["logits"],
        vocabulary_size=int(arrays["vocabulary_size"]) if "vocabulary_size" in arrays else None,
        max_context_tokens=max_context_tokens,
        delay_seconds=delay_seconds,
    )

"""The inputs of recorded forwards: always in the same place on the device, brought there by one copy per forward."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specmesh.model.layout import layout_of
from specmesh.model.spans import Span


class Staging:
    """On the device: `ids`, `positions`, `slots` (below 0: padding) and `wanted` (rows whose logits are wanted), all
    [max_tokens] int64; `tiles` [max_tiles, 4] and `tables` [max_blocks] int32 as for the compiled attention.
    """

    def __init__(self, max_tokens: int, max_tiles: int, max_blocks: int, device: torch.device) -> None:
        self._rows_end = 4 * 8 * max_tokens
        self._tiles_end = self._rows_end + 4 * 4 * max_tiles
        size = self._tiles_end + 4 * max_blocks
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu)
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if on_gpu else None
        rows, self.tiles, self.tables = self._views(self._device)
        self.ids, self.positions, self.slots, self.wanted = rows.unbind()
        self._rows: NDArray[np.int64]
        self._rows, self._tiles, self._tables = (view.numpy() for view in self._views(self._host))

    def _views(self, buffer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = buffer[: self._rows_end].view(torch.int64).view(4, -1)
        tiles = buffer[self._rows_end : self._tiles_end].view(torch.int32).view(-1, 4)
        return rows, tiles, buffer[self._tiles_end :].view(torch.int32)

    def send(self, spans: Sequence[Span], num_tokens: int, queries: int, num_tiles: int) -> Tensor | None:
        """Have the spans on the device, padded to so many tokens and tiles; does not wait for it.

        Returns the rows whose logits are wanted, on the device; None: all that the spans have.
        """
        self._await_copy()
        layout = layout_of(spans)
        size, blocks = len(layout.ids), len(layout.tables)
        self._rows[0, :size] = layout.ids
        self._rows[1, :size] = layout.positions
        self._rows[2, :size] = layout.slots
        self._rows[2, size:num_tokens] = -1
        every = not layout.skipped.any()
        num_wanted = 0
        if not every:
            rows = layout.wanted_rows
            num_wanted = len(rows)
            self._rows[3, :num_wanted] = rows
        self._rows[3, num_wanted:num_tokens] = 0
        tiles = layout.tiles(queries)
        self._tiles[: len(tiles)] = tiles
        self._tiles[len(tiles) : num_tiles] = 0
        self._tables[:blocks] = layout.tables
        self._copy(self._tiles_end + 4 * blocks)
        return None if every else self.wanted[:num_wanted]

    def clear(self) -> None:
        """Padding alone."""
        self._await_copy()
        self._rows[:] = 0
        self._rows[2] = -1
        self._tiles[:] = 0
        self._copy(self._tiles_end)

    def _copy(self, num_bytes: int) -> None:
        self._device[:num_bytes].copy_(self._host[:num_bytes], non_blocking=True)
        if self._sent is not None:
            self._sent.record()

    def _await_copy(self) -> None:
        """The host's side may be written again once the device has read it."""
        if self._sent is not None:
            self._sent.synchronize()

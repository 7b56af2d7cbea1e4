"""Forwards of few tokens as recorded CUDA graphs: by size, for launching them one by one takes longer than they run.

tick      a forward whose spans are all short: steps of sessions, no chunks of prompts
bucket    (tokens, tiles) that a recorded forward has room for; what a tick leaves over is padding: tokens that are
          written nowhere and attended to by no tile
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specmesh.model.attention import AttentionShape, CompiledPlan, PagedCache
from specmesh.model.plan import span_slots
from specmesh.model.spans import Span
from specmesh.model.tiles import MAX_SPLITS, MAX_TILE_ROWS, PROGRAMS, block_tables, tile_fields

TOKENS = (1, 2, 4, 5, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640)
TILES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MAX_QUERIES = 8
"""Per tile: a block of up to 7 drafted tokens is one tile, a longer one several."""
MAX_SPAN_TOKENS = 65
"""A longer span is a prompt's chunk."""

logger = logging.getLogger(__name__)


class Recorded(NamedTuple):
    """A forward that `replay` runs again, on what is in its inputs by then; its result is always in `logits`."""

    logits: Tensor
    replay: Callable[[], None]


Record = Callable[[Callable[[], Tensor]], Recorded]


def recorder() -> Record:
    """Records with CUDA; all graphs share one pool of memory, since only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def record(forward: Callable[[], Tensor]) -> Recorded:
        forward()  # compiles and picks what is not compiled and picked yet: none of that may be recorded
        torch.cuda.synchronize()
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = forward()
        return Recorded(logits, graph.replay)

    return record


class TickGraphs:
    """The recorded forwards of one model and cache."""

    def __init__(
        self,
        module: Callable[..., Any],
        cache: PagedCache,
        attention: AttentionShape,
        *,
        max_tokens: int,
        max_blocks: int,
        record: Record,
    ) -> None:
        device = cache.keys.device
        self._module = module
        self._cache = cache
        self._attention = attention
        self._group = attention.num_heads // attention.num_kv_heads
        self._queries = min(MAX_QUERIES, 1 << (max(1, MAX_TILE_ROWS // self._group).bit_length() - 1))
        self._record = record
        self._tokens = [size for size in TOKENS if size < max_tokens] + [max_tokens]
        # ids, positions and slots of every token; then a tile's fields and its session's blocks.
        self._rows = torch.zeros(3, max_tokens, dtype=torch.int64, device=device)
        self._tiles = torch.zeros(TILES[-1], 4, dtype=torch.int32, device=device)
        self._tables = torch.zeros(TILES[-1], max_blocks, dtype=torch.int32, device=device)
        self._recorded: dict[tuple[int, int], Recorded] = {}

    def record_all(self) -> None:
        """Record every bucket, the largest first, so that the others find memory in the pool."""
        buckets = [
            (tokens, tiles)
            for tokens in reversed(self._tokens)
            for tiles in TILES
            if tiles < 2 * tokens and tokens <= tiles * self._queries
        ]
        for done, bucket in enumerate(buckets):
            if done % 10 == 0:
                logger.info(f"recording forwards: {done} of {len(buckets)}")
            self._recorded_for(bucket)
        logger.info(f"recording forwards: {len(buckets)} of {len(buckets)}")

    def bucket_of(self, spans: Sequence[Span]) -> tuple[int, int] | None:
        """The smallest that has room; None: not a tick, or too large."""
        lengths = [len(span.token_ids) for span in spans]
        tokens, tiles = sum(lengths), sum(-(-length // self._queries) for length in lengths)
        if tokens > self._tokens[-1] or tiles > TILES[-1] or max(lengths) > MAX_SPAN_TOKENS:
            return None
        return self._tokens[bisect_left(self._tokens, tokens)], TILES[bisect_left(TILES, tiles)]

    def run(self, spans: Sequence[Span], bucket: tuple[int, int]) -> Tensor:
        """Logits [tokens of the bucket, W] of all tokens in order, then padding; overwritten by the next run."""
        num_tokens, num_tiles = bucket
        ids = [token for span in spans for token in span.token_ids]
        rows = np.zeros((3, num_tokens), np.int64)
        rows[2] = -1
        rows[0, : len(ids)] = ids
        rows[1, : len(ids)] = np.concatenate([np.arange(span.start, span.end) for span in spans])
        rows[2, : len(ids)] = span_slots(spans)
        tiles = np.zeros((num_tiles, 4), np.int32)
        filled = tile_fields(spans, self._queries)
        tiles[: len(filled)] = filled
        tables = block_tables(spans)
        recorded = self._recorded_for(bucket)
        self._rows[:, :num_tokens].copy_(torch.from_numpy(rows))
        self._tiles[:num_tiles].copy_(torch.from_numpy(tiles))
        self._tables[: tables.shape[0], : tables.shape[1]].copy_(torch.from_numpy(tables))
        recorded.replay()
        return recorded.logits

    def _recorded_for(self, bucket: tuple[int, int]) -> Recorded:
        if bucket not in self._recorded:
            self._rows[2].fill_(-1)
            self._tiles.zero_()
            self._recorded[bucket] = self._record(lambda: self._forward(bucket))
        return self._recorded[bucket]

    def _forward(self, bucket: tuple[int, int]) -> Tensor:
        num_tokens, num_tiles = bucket
        splits = PROGRAMS // (num_tiles * self._attention.num_kv_heads)
        plan = CompiledPlan(
            slots=self._rows[2, :num_tokens],
            tiles=self._tiles[:num_tiles],
            tables=self._tables,
            queries=self._queries,
            splits=1 << (max(1, min(splits, MAX_SPLITS)).bit_length() - 1),
        )
        output = self._module(
            input_ids=self._rows[0:1, :num_tokens],
            position_ids=self._rows[1:2, :num_tokens],
            use_cache=False,
            kv=self._cache,
            plan=plan,
        )
        logits: Tensor = output.logits[0]
        return logits

"""Forwards as recorded CUDA graphs: by size, for launching them one by one takes longer than they run.

step      a forward whose spans are all short: sessions' blocks, no chunks of prompts; it has logits of all its tokens
chunk     a forward with a chunk of a prompt in it; few of its tokens' logits are wanted
bucket    what a recorded forward has room for; what a tick leaves over is padding: tokens that are written nowhere and
          attended to by no tile
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specmesh.model.attention import AttentionShape, CompiledPlan, PagedCache
from specmesh.model.spans import Span
from specmesh.model.staging import Staging
from specmesh.model.tiles import LEAST_SPLIT_TOKENS, MAX_SPLITS, MAX_TILE_ROWS, PROGRAMS

TOKENS = (1, 2, 4, 5, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640)
TILES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MAX_QUERIES = 8
"""Per tile of a step: a block of up to 7 drafted tokens is one tile, a longer one several."""
MAX_SPAN_TOKENS = 65
"""A longer span is a prompt's chunk."""
CHUNK_TOKENS = (96, 128, 256, 320, 384, 512, 640, 768, 1024)
CHUNK_ROWS = 64
"""Logits of a chunk's forward; where more are wanted, as many as a step may have."""
CHUNK_SPANS = 128
"""Room for so many sessions in a chunk's forward, or for one in four of its tokens."""
MAX_TABLE_BLOCKS = 1 << 19
"""Of all sessions of a tick: more go unrecorded."""

logger = logging.getLogger(__name__)


class Bucket(NamedTuple):
    """Tokens and tiles of a recorded forward, queries of a tile, and rows of logits; None: those of all tokens."""

    tokens: int
    tiles: int
    queries: int
    rows: int | None = None


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
        max_rows: int,
        max_chunk: int,
        max_context: int,
        record: Record,
    ) -> None:
        """`max_rows`: tokens of a step, and rows of logits; `max_chunk`: of prompts in one forward, 0: not recorded."""
        self._max_splits = max(1, min(max_context // LEAST_SPLIT_TOKENS, MAX_SPLITS))
        self._module = module
        self._cache = cache
        self._attention = attention
        self._record = record
        most = MAX_TILE_ROWS // (attention.num_heads // attention.num_kv_heads)
        self._chunk_queries = 1 << (max(1, most).bit_length() - 1)
        self._step_queries = min(MAX_QUERIES, self._chunk_queries)
        self._steps = [size for size in TOKENS if size < max_rows] + [max_rows]
        longest = max_rows + max_chunk if max_chunk else 0
        self._chunks = [size for size in CHUNK_TOKENS if size < longest] + [longest] if max_chunk else []
        self._chunk_rows = sorted({min(CHUNK_ROWS, max_rows), max_rows})
        self._staging = Staging(
            max(self._steps + self._chunks),
            max([TILES[-1], *(self._chunk_tiles(tokens) for tokens in self._chunks)]),
            MAX_TABLE_BLOCKS,
            cache.keys.device,
        )
        self._recorded: dict[Bucket, Recorded] = {}

    def record_all(self) -> None:
        """Record every bucket, the largest first, so that the others find memory in the pool."""
        sizes = [(tokens, rows) for tokens in reversed(self._chunks) for rows in reversed(self._chunk_rows)]
        chunks = list(dict.fromkeys(self._chunk_bucket(*size) for size in sizes))
        steps = [
            Bucket(tokens, tiles, self._step_queries)
            for tokens in reversed(self._steps)
            for tiles in TILES
            if tiles < 2 * tokens and tokens <= tiles * self._step_queries
        ]
        buckets = chunks + steps
        for done, bucket in enumerate(buckets):
            if done % 10 == 0:
                logger.info(f"recording forwards: {done} of {len(buckets)}")
            self._recorded_for(bucket)
        logger.info(f"recording forwards: {len(buckets)} of {len(buckets)}")

    def _chunk_tiles(self, tokens: int) -> int:
        return -(-tokens // self._chunk_queries) + min(CHUNK_SPANS, tokens // 4)

    def _chunk_bucket(self, tokens: int, rows: int) -> Bucket:
        return Bucket(tokens, self._chunk_tiles(tokens), self._chunk_queries, min(rows, tokens))

    def bucket_of(self, spans: Sequence[Span]) -> Bucket | None:
        """The smallest that has room; None: too large for all."""
        lengths = [len(span.token_ids) for span in spans]
        tokens = sum(lengths)
        if sum(len(span.block_table) for span in spans) > MAX_TABLE_BLOCKS:
            return None
        if max(lengths) <= MAX_SPAN_TOKENS and tokens <= self._steps[-1]:
            tiles = sum(-(-length // self._step_queries) for length in lengths)
            if tiles > TILES[-1]:
                return None
            size = self._steps[bisect_left(self._steps, tokens)]
            return Bucket(size, TILES[bisect_left(TILES, tiles)], self._step_queries)
        rows = tokens - sum(span.first_row for span in spans)
        if not self._chunks or tokens > self._chunks[-1] or rows > self._chunk_rows[-1]:
            return None
        rows_size = self._chunk_rows[bisect_left(self._chunk_rows, rows)]
        tiles = sum(-(-length // self._chunk_queries) for length in lengths)
        sizes = self._chunks[bisect_left(self._chunks, tokens) :]
        buckets = (self._chunk_bucket(size, rows_size) for size in sizes)
        return next((bucket for bucket in buckets if tiles <= bucket.tiles), None)

    def run(self, spans: Sequence[Span], bucket: Bucket) -> Tensor:
        """Logits [R, W] of the rows wanted, in order; overwritten by the next run."""
        recorded = self._recorded_for(bucket)
        wanted = self._staging.send(spans, bucket.tokens, bucket.queries, bucket.tiles)
        recorded.replay()
        if bucket.rows is None and wanted is not None:
            return recorded.logits[wanted]
        return recorded.logits[: sum(len(span.token_ids) - span.first_row for span in spans)]

    def _recorded_for(self, bucket: Bucket) -> Recorded:
        if bucket not in self._recorded:
            self._staging.clear()
            self._recorded[bucket] = self._record(lambda: self._forward(bucket))
        return self._recorded[bucket]

    def _forward(self, bucket: Bucket) -> Tensor:
        busy_tiles = bucket.tiles if bucket.rows is None else -(-bucket.tokens // bucket.queries)
        splits = PROGRAMS // (busy_tiles * self._attention.num_kv_heads)
        staged = self._staging
        plan = CompiledPlan(
            slots=staged.slots[: bucket.tokens],
            tiles=staged.tiles[: bucket.tiles],
            tables=staged.tables,
            queries=bucket.queries,
            splits=1 << (max(1, min(splits, self._max_splits)).bit_length() - 1),
        )
        output = self._module(
            input_ids=staged.ids[None, : bucket.tokens],
            position_ids=staged.positions[None, : bucket.tokens],
            use_cache=False,
            kv=self._cache,
            plan=plan,
            **({} if bucket.rows is None else {"logits_to_keep": staged.wanted[: bucket.rows]}),
        )
        logits: Tensor = output.logits[0]
        return logits

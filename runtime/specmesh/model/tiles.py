"""From spans of sessions to the tiles of the compiled attention. Plain Python up to the last step."""

import importlib.util
from collections.abc import Sequence

import numpy as np
import torch

from specmesh.model.attention import AttentionShape, CompiledPlan
from specmesh.model.blocks import blocks_for
from specmesh.model.plan import span_slots
from specmesh.model.spans import Span

MAX_TILE_ROWS = 64
"""Queries times the heads that share keys: rows of one product."""
MAX_SPLITS = 16
LEAST_SPLIT_TOKENS = 256
"""A shorter part of a context is not worth a program of its own."""
PROGRAMS = 264
"""Two for each multiprocessor of a large GPU: more at once do not run faster."""


def queries_per_tile(spans: Sequence[Span], group: int) -> int:
    """A power of two: what the longest span has, up to `MAX_TILE_ROWS` rows. `group`: query heads per key head."""
    longest = max(len(span.token_ids) for span in spans)
    most = max(1, MAX_TILE_ROWS // group)
    return min(1 << (longest - 1).bit_length(), 1 << (most.bit_length() - 1))


def num_splits(spans: Sequence[Span], num_tiles: int, num_kv_heads: int) -> int:
    """Parts of a context, a power of two: until the programs fill a GPU, as long as parts are worth it."""
    by_length = max(span.end for span in spans) // LEAST_SPLIT_TOKENS
    by_programs = PROGRAMS // max(1, num_tiles * num_kv_heads)
    return 1 << (max(1, min(by_length, by_programs, MAX_SPLITS)).bit_length() - 1)


def tile_fields(spans: Sequence[Span], queries: int) -> np.ndarray:
    """`tiles` [T, 4] int32 of the compiled attention."""
    tiles = []
    row = 0
    for index, span in enumerate(spans):
        length = len(span.token_ids)
        tiles += [(row + at, span.start + at, min(queries, length - at), index) for at in range(0, length, queries)]
        row += length
    return np.array(tiles, np.int32).reshape(-1, 4)


def block_tables(spans: Sequence[Span]) -> np.ndarray:
    """`tables` [B, M] int32: the blocks of each span, 0 beyond those that it needs."""
    sizes = [blocks_for(span.end) for span in spans]
    tables = np.zeros((len(spans), max(sizes, default=0)), np.int32)
    for table, span, size in zip(tables, spans, sizes, strict=True):
        table[:size] = span.block_table[:size]
    return tables


def make_compiled_plan(spans: Sequence[Span], attention: AttentionShape, device: torch.device) -> CompiledPlan:
    """The plan of a forward over the spans' tokens, for the Triton kernels: two copies to the device."""
    queries = queries_per_tile(spans, attention.num_heads // attention.num_kv_heads)
    tiles, tables = tile_fields(spans, queries), block_tables(spans)
    both = torch.from_numpy(np.concatenate((tiles.reshape(-1), tables.reshape(-1)))).to(device)
    return CompiledPlan(
        slots=torch.from_numpy(span_slots(spans)).to(device),
        tiles=both[: tiles.size].view(tiles.shape),
        tables=both[tiles.size :].view(tables.shape),
        queries=queries,
        splits=num_splits(spans, len(tiles), attention.num_kv_heads),
    )


def can_compile(device: torch.device) -> bool:
    """Whether the Triton kernels run there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None

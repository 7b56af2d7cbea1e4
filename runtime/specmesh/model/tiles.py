"""From spans of sessions to the tiles of the compiled attention. Plain Python up to the last step."""

import importlib.util
from collections.abc import Sequence

import numpy as np
import torch

from specmesh.model.attention import AttentionShape, CompiledPlan
from specmesh.model.layout import layout_of
from specmesh.model.spans import Span

MAX_TILE_ROWS = 64
"""Queries times the heads that share keys: rows of one product."""
MAX_SPLITS = 32
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


def make_compiled_plan(spans: Sequence[Span], attention: AttentionShape, device: torch.device) -> CompiledPlan:
    """The plan of a forward over the spans' tokens, for the Triton kernels: two copies to the device."""
    queries = queries_per_tile(spans, attention.num_heads // attention.num_kv_heads)
    layout = layout_of(spans)
    tiles = layout.tiles(queries)
    both = torch.from_numpy(np.concatenate((tiles.reshape(-1), layout.tables))).to(device)
    return CompiledPlan(
        slots=torch.from_numpy(layout.slots).to(device),
        tiles=both[: tiles.size].view(tiles.shape),
        tables=both[tiles.size :],
        queries=queries,
        splits=num_splits(spans, len(tiles), attention.num_kv_heads),
    )


def can_compile(device: torch.device) -> bool:
    """Whether the Triton kernels run there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None

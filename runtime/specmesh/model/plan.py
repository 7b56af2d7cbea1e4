"""From spans of sessions to the tensors of one ragged forward. Plain Python up to the last step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specmesh.model.attention import AttentionPlan, AttentionShape
from specmesh.model.blocks import BLOCK_TOKENS, blocks_for
from specmesh.model.spans import Span as Span

FAST_TILE_QUERIES = 64
GROUP_COST = 25
"""What one more batch of attention costs, in units of one query against one cache block: measured on two cores
(about 25 us against 1 us), and not critical."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Neighbouring queries of one session: `count` of them, the first at `row` of the flat row and at `position`."""

    row: int
    position: int
    count: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What a plan needs to know of the model and its cache.

    `zero_block`: a block that holds zeros, to pad tables with. `tile_queries`, `tile_blocks`: tiles are padded to a
    multiple of that many cache blocks and, when rows must be independent, to exactly that many queries.
    """

    attention: AttentionShape
    dtype: torch.dtype
    device: torch.device
    zero_block: int
    tile_queries: int
    tile_blocks: int
    independent_rows: bool


def split_spans(spans: Sequence[Span], max_tokens: int) -> list[list[Span]]:
    """The same work as forwards of at most `max_tokens` tokens each, in order."""
    batches: list[list[Span]] = [[]]
    room = max_tokens
    for span in spans:
        at = 0
        while at < len(span.token_ids):
            if room == 0:
                batches.append([])
                room = max_tokens
            count = min(room, len(span.token_ids) - at)
            batches[-1].append(_piece(span, at, count))
            at += count
            room -= count
    return batches


def _piece(span: Span, at: int, count: int) -> Span:
    if count == len(span.token_ids):
        return span
    first_row = min(max(span.first_row - at, 0), count)
    return Span(span.token_ids[at : at + count], span.start + at, span.block_table, first_row)


def span_slots(spans: Sequence[Span]) -> np.ndarray:
    """Cache places (block * 16 + offset) of all tokens, in order: [S] int64."""
    return np.concatenate([slots_of(span.block_table, span.start, span.end) for span in spans])


def wanted_rows(spans: Sequence[Span]) -> np.ndarray:
    """Flat rows whose logits are wanted: int64."""
    wanted = []
    row = 0
    for span in spans:
        wanted.append(np.arange(row + span.first_row, row + len(span.token_ids)))
        row += len(span.token_ids)
    return np.concatenate(wanted)


def slots_of(block_table: Sequence[int], start: int, end: int) -> np.ndarray:
    """Cache places of positions `start` up to `end` of one session: int64."""
    positions = np.arange(start, end)
    blocks = np.asarray(block_table[: blocks_for(end)], np.int64)
    return blocks[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS


def make_plan(spans: Sequence[Span], num_rows: int, shape: PlanShape) -> AttentionPlan:
    """The plan of a forward over `num_rows` >= sum of the spans' tokens; rows past those are padding."""
    tiles = make_tiles(spans, shape.tile_queries)
    tensors: list[Tensor] = []
    scratch: list[Tensor] = []
    order = np.zeros(num_rows, np.int64)
    base = 0
    for group in group_tiles(tiles, shape):
        num_queries, num_blocks = _group_size(group, shape)
        for index, tile in enumerate(group):
            order[tile.row : tile.row + tile.count] = base + index * num_queries + np.arange(tile.count)
        base += len(group) * num_queries
        tensors += _group_tensors(group, num_queries, num_blocks, shape)
        scratch += _group_scratch(len(group) * num_blocks, len(group), shape)
    slots = torch.from_numpy(span_slots(spans)).to(shape.device)
    return AttentionPlan(slots, tensors, scratch, torch.from_numpy(order).to(shape.device), shape.independent_rows)


def make_tiles(spans: Sequence[Span], tile_queries: int) -> list[Tile]:
    """Every span in tiles of at most `tile_queries` queries; a tile sees the blocks up to its last query."""
    tiles = []
    row = 0
    for span in spans:
        for at in range(0, len(span.token_ids), tile_queries):
            count = min(tile_queries, len(span.token_ids) - at)
            position = span.start + at
            tiles.append(Tile(row + at, position, count, span.block_table[: blocks_for(position + count)]))
        row += len(span.token_ids)
    return tiles


def group_tiles(tiles: Sequence[Tile], shape: PlanShape) -> list[list[Tile]]:
    """Batches of tiles of like size: padding one more into a batch must cost less than a batch of its own."""
    groups: list[list[Tile]] = []
    for tile in sorted(tiles, key=lambda tile: (len(tile.blocks), tile.count)):
        joined = [*groups[-1], tile] if groups else [tile]
        if groups and _cost(joined, shape) <= _cost(groups[-1], shape) + _cost([tile], shape):
            groups[-1] = joined
        else:
            groups.append([tile])
    return groups


def _cost(group: Sequence[Tile], shape: PlanShape) -> int:
    num_queries, num_blocks = _group_size(group, shape)
    return GROUP_COST + len(group) * num_queries * num_blocks


def _group_size(group: Sequence[Tile], shape: PlanShape) -> tuple[int, int]:
    """Queries and cache blocks per tile."""
    num_queries = shape.tile_queries if shape.independent_rows else max(tile.count for tile in group)
    num_blocks = max(len(tile.blocks) for tile in group)
    return num_queries, -(-num_blocks // shape.tile_blocks) * shape.tile_blocks


def _group_tensors(group: Sequence[Tile], num_queries: int, num_blocks: int, shape: PlanShape) -> list[Tensor]:
    """`queries`, `tables` and `mask` of a `TileGroup`."""
    offsets = np.minimum(np.arange(num_queries), np.array([[tile.count - 1] for tile in group]))
    queries = np.array([[tile.row] for tile in group]) + offsets
    positions = torch.from_numpy(np.array([[tile.position] for tile in group]) + offsets)
    tables = np.full((len(group), num_blocks), shape.zero_block, np.int64)
    for table, tile in zip(tables, group, strict=True):
        table[: len(tile.blocks)] = tile.blocks
    hidden = torch.arange(num_blocks * BLOCK_TOKENS) > positions[:, :, None]
    mask = torch.zeros(hidden.shape, dtype=shape.dtype).masked_fill_(hidden, -torch.inf)
    sharing = shape.attention.num_heads // shape.attention.num_kv_heads
    mask = mask.repeat(1, sharing, 1)[:, None]
    tensors = (torch.from_numpy(queries.reshape(-1)), torch.from_numpy(tables), mask)
    return [tensor.to(shape.device) for tensor in tensors]


def _group_scratch(num_blocks: int, num_tiles: int, shape: PlanShape) -> list[Tensor]:
    """`keys` and `values` of a `TileGroup`; unused, so empty, where rows are independent."""
    if shape.independent_rows:
        return [torch.empty(0, dtype=shape.dtype, device=shape.device)] * 2
    heads = shape.attention.num_kv_heads
    sizes = (shape.attention.key_size, shape.attention.value_size)
    lead = (num_tiles, num_blocks // num_tiles, BLOCK_TOKENS, heads)
    return [torch.empty(*lead, size, dtype=shape.dtype, device=shape.device) for size in sizes]

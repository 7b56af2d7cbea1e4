"""Attention of a ragged batch over the paged cache. Counterpart of `reference.paged_attention`.

A tile is up to QUERIES neighbouring queries of one session, and all query heads that share one key/value head: ROWS
rows of one product, so a block of keys is read once for all of them. Long contexts are cut into SPLITS parts that are
attended side by side and merged (the running softmax of arXiv 1805.02867): a few sessions alone would not fill a GPU.
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, N803

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_TOKENS = tl.constexpr(16)
TILE_FIELDS = 4
"""Of a tile: first row of the flat row, its position, number of queries (0: padding), index of its block table."""
LEAST_ROWS = 16
"""Of a product on tensor cores."""
KEYS = 64
"""Keys per turn of the loop; a power of two, at least 16."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a batch is cut: `queries` per tile, `splits` of a context; both powers of two."""

    queries: int
    splits: int


@triton.jit
def _keys_of(
    cache, tables, session, max_blocks, at, inside, head, HEADS: tl.constexpr, SIZE: tl.constexpr, SIZE_P: tl.constexpr
):
    """[KEYS, SIZE_P] of a contiguous cache; 0 outside, so that what another session left there (NaN) does no harm."""
    block = tl.load(tables + session * max_blocks + at // BLOCK_TOKENS, mask=inside, other=0).to(tl.int64)
    token = block * BLOCK_TOKENS + at % BLOCK_TOKENS
    columns = tl.arange(0, SIZE_P)[None, :]
    place = cache + (token * HEADS + head)[:, None] * SIZE + columns
    return tl.load(place, mask=inside[:, None] & (columns < SIZE), other=0.0)


@triton.jit
def _attend_tile(
    query, key_cache, value_cache, tiles, tables, max_blocks, out, sums, peaks, totals, scale, query_row, query_head,
    query_column, HEADS: tl.constexpr, GROUP: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    KEY_P: tl.constexpr, VALUE_P: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    KEYS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Program (tile, key/value head, split)."""
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(tiles + tile * 4).to(tl.int64)
    position = tl.load(tiles + tile * 4 + 1)
    count = tl.load(tiles + tile * 4 + 2)
    session = tl.load(tiles + tile * 4 + 3).to(tl.int64)
    rows = tl.arange(0, ROWS)
    queries = rows // GROUP
    valid = queries < tl.minimum(count, QUERIES)
    columns = tl.arange(0, KEY_P)[None, :]
    place = query + (first_row + queries)[:, None] * query_row + (head * GROUP + rows % GROUP)[:, None] * query_head
    wanted = tl.load(place + columns * query_column, mask=valid[:, None] & (columns < KEY_SIZE), other=0.0)
    if WIDEN:
        wanted = wanted.to(tl.float32)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, VALUE_P), tl.float32)
    end = tl.where(count > 0, position + count, 0)
    share = tl.cdiv(tl.cdiv(end, KEYS), SPLITS) * KEYS
    last = tl.minimum(end, (split + 1) * share)
    for start in range(split * share, last, KEYS):
        at = start + tl.arange(0, KEYS)
        inside = at < end
        keys = _keys_of(key_cache, tables, session, max_blocks, at, inside, head, HEADS, KEY_SIZE, KEY_P)
        if WIDEN:
            keys = keys.to(tl.float32)
        scores = tl.dot(wanted, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(at[None, :] <= (position + queries)[:, None], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        kept = tl.exp(peak - base)
        values = _keys_of(value_cache, tables, session, max_blocks, at, inside, head, HEADS, VALUE_SIZE, VALUE_P)
        if WIDEN:
            values = values.to(tl.float32)
        total = total * kept + tl.sum(weights, 1)
        result = result * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        peak = higher
    columns = tl.arange(0, VALUE_P)[None, :]
    if SPLITS == 1:
        place = out + (first_row + queries)[:, None] * (HEADS * GROUP * VALUE_SIZE)
        place += (head * GROUP + rows % GROUP)[:, None] * VALUE_SIZE + columns
        mask = valid[:, None] & (columns < VALUE_SIZE)
        tl.store(place, (result / total[:, None]).to(out.dtype.element_ty), mask=mask)
    else:
        part = ((tile * HEADS + head) * SPLITS + split).to(tl.int64) * ROWS + rows
        tl.store(peaks + part, peak)
        tl.store(totals + part, total)
        tl.store(sums + part[:, None] * VALUE_P + columns, result)


@triton.jit
def _merge(
    tiles, out, sums, peaks, totals, HEADS: tl.constexpr, GROUP: tl.constexpr, VALUE_SIZE: tl.constexpr,
    VALUE_P: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Program (tile, key/value head): the splits' results as one."""
    tile, head = tl.program_id(0), tl.program_id(1)
    first_row = tl.load(tiles + tile * 4).to(tl.int64)
    count = tl.load(tiles + tile * 4 + 2)
    rows = tl.arange(0, ROWS)
    queries = rows // GROUP
    valid = queries < tl.minimum(count, QUERIES)
    columns = tl.arange(0, VALUE_P)[None, :]
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, VALUE_P), tl.float32)
    for split in range(SPLITS):
        part = ((tile * HEADS + head) * SPLITS + split).to(tl.int64) * ROWS + rows
        own = tl.load(peaks + part)
        higher = tl.maximum(peak, own)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        kept, added = tl.exp(peak - base), tl.exp(own - base)
        total = total * kept + tl.load(totals + part) * added
        result = result * kept[:, None] + tl.load(sums + part[:, None] * VALUE_P + columns) * added[:, None]
        peak = higher
    place = out + (first_row + queries)[:, None] * (HEADS * GROUP * VALUE_SIZE)
    place += (head * GROUP + rows % GROUP)[:, None] * VALUE_SIZE + columns
    mask = valid[:, None] & (columns < VALUE_SIZE)
    tl.store(place, (result / total[:, None]).to(out.dtype.element_ty), mask=mask)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    tiles: Tensor,
    tables: Tensor,
    scale: float,
    tiling: Tiling,
) -> Tensor:
    """Softmax attention of every token over its own session's cached tokens, this batch's own already written.

    `query` [N, H, D], any strides; caches [blocks, 16, K, D] and [blocks, 16, K, Dv], contiguous; `tiles` [T, 4]
    int32: see `TILE_FIELDS`, every token in exactly one; `tables` [B, M] int32: cache blocks of each session.
    Returns [N, H, Dv]; rows that are in no tile hold anything.
    """
    heads, key_size, value_size = key_cache.shape[2], key_cache.shape[3], value_cache.shape[3]
    group = query.shape[1] // heads
    num_tiles, splits = tiles.shape[0], tiling.splits
    rows = max(LEAST_ROWS, triton.next_power_of_2(tiling.queries * group))
    key_p, value_p = (max(16, triton.next_power_of_2(size)) for size in (key_size, value_size))
    # The interpreter multiplies the bits of bfloat16 as if they were integers.
    widen = triton.knobs.runtime.interpret and query.dtype == torch.bfloat16
    out = query.new_empty(query.shape[0], query.shape[1], value_size)
    lead = (num_tiles, heads, splits, rows) if splits > 1 else (1, 1, 1, 1)
    sums = torch.empty(*lead, value_p, dtype=torch.float32, device=query.device)
    peaks, totals = torch.empty(2, *lead, dtype=torch.float32, device=query.device)
    _attend_tile[(num_tiles, heads, splits)](
        query, key_cache, value_cache, tiles, tables, tables.shape[1], out, sums, peaks, totals, scale,
        *query.stride(), heads, group, key_size, value_size, key_p, value_p, tiling.queries, rows, splits, KEYS,
        widen,
    )  # fmt: skip
    if splits > 1:
        _merge[(num_tiles, heads)](
            tiles, out, sums, peaks, totals, heads, group, value_size, value_p, tiling.queries, rows, splits
        )
    return out

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

from specmesh.kernels.compiled.launching import early_options, let_next_launch_begin, wait_for_launch_before

BLOCK_TOKENS = tl.constexpr(16)
TILE_FIELDS = 4
"""Of a tile: first row of the flat row, its position, number of queries (0: padding), where its block table begins."""
LEAST_ROWS = 16
"""Of a product on tensor cores."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a batch is cut: `queries` per tile and `splits` of a context, powers of two."""

    queries: int
    splits: int


def keys_per_turn(head_size: int, item_bytes: int) -> int:
    """Keys per turn of the loop, measured: 128 for 16-bit heads of 128; float32 multiplies in registers: fewer."""
    padded: int = triton.next_power_of_2(head_size)
    return max(16, min(128, 65536 // (padded * item_bytes**2)))


@triton.jit
def _keys_of(cache, table, at, inside, head, HEADS: tl.constexpr, SIZE: tl.constexpr, SIZE_P: tl.constexpr):
    """[KEYS, SIZE_P] of a contiguous cache; 0 outside, so that what another session left there (NaN) does no harm."""
    block = tl.load(table + at // BLOCK_TOKENS, mask=inside, other=0).to(tl.int64)
    token = block * BLOCK_TOKENS + at % BLOCK_TOKENS
    columns = tl.arange(0, SIZE_P)[None, :]
    place = cache + (token * HEADS + head)[:, None] * SIZE + columns
    return tl.load(place, mask=inside[:, None] & (columns < SIZE), other=0.0)


@triton.jit(do_not_specialize=["splits"])
def _attend_tile(
    query, key_cache, value_cache, tiles, tables, out, sums, peaks, totals, scale, query_row, query_head,
    query_column, splits, HEADS: tl.constexpr, GROUP: tl.constexpr, KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, KEY_P: tl.constexpr, VALUE_P: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, WHOLE: tl.constexpr, WIDEN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (tile, key/value head, split)."""
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(tiles + tile * 4).to(tl.int64)
    position = tl.load(tiles + tile * 4 + 1)
    count = tl.load(tiles + tile * 4 + 2)
    table = tables + tl.load(tiles + tile * 4 + 3)
    if EARLY:
        let_next_launch_begin()
        wait_for_launch_before()
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
    share = tl.cdiv(tl.cdiv(end, KEYS), splits) * KEYS
    last = tl.minimum(end, (split + 1) * share)
    for start in range(split * share, last, KEYS):
        at = start + tl.arange(0, KEYS)
        inside = at < end
        keys = _keys_of(key_cache, table, at, inside, head, HEADS, KEY_SIZE, KEY_P)
        if WIDEN:
            keys = keys.to(tl.float32)
        scores = tl.dot(wanted, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(at[None, :] <= (position + queries)[:, None], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        kept = tl.exp(peak - base)
        values = _keys_of(value_cache, table, at, inside, head, HEADS, VALUE_SIZE, VALUE_P)
        if WIDEN:
            values = values.to(tl.float32)
        total = total * kept + tl.sum(weights, 1)
        result = result * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        peak = higher
    columns = tl.arange(0, VALUE_P)[None, :]
    if WHOLE:
        place = out + (first_row + queries)[:, None] * (HEADS * GROUP * VALUE_SIZE)
        place += (head * GROUP + rows % GROUP)[:, None] * VALUE_SIZE + columns
        mask = valid[:, None] & (columns < VALUE_SIZE)
        tl.store(place, (result / total[:, None]).to(out.dtype.element_ty), mask=mask)
    elif split * share < end:
        part = ((tile * HEADS + head) * splits + split).to(tl.int64) * ROWS + rows
        tl.store(peaks + part, peak)
        tl.store(totals + part, total)
        tl.store(sums + part[:, None] * VALUE_P + columns, result)


@triton.jit
def _merge(
    tiles, out, sums, peaks, totals, HEADS: tl.constexpr, GROUP: tl.constexpr, VALUE_SIZE: tl.constexpr,
    VALUE_P: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Program (tile, key/value head, row): the results of the splits that met a key as one."""
    tile, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(tiles + tile * 4).to(tl.int64)
    position = tl.load(tiles + tile * 4 + 1)
    count = tl.load(tiles + tile * 4 + 2)
    if EARLY:
        let_next_launch_begin()
        wait_for_launch_before()
    query = row // GROUP
    if query < tl.minimum(count, QUERIES):
        split = tl.arange(0, SPLITS)
        end = position + count
        met = split * (tl.cdiv(tl.cdiv(end, KEYS), SPLITS) * KEYS) < end
        part = ((tile * HEADS + head) * SPLITS + split).to(tl.int64) * ROWS + row
        columns = tl.arange(0, VALUE_P)
        peak = tl.load(peaks + part, mask=met, other=float("-inf"))
        weight = tl.exp(peak - tl.max(peak, 0))
        total = tl.sum(weight * tl.load(totals + part, mask=met, other=0.0), 0)
        sums_of = tl.load(sums + part[:, None] * VALUE_P + columns[None, :], mask=met[:, None], other=0.0)
        result = tl.sum(weight[:, None] * sums_of, 0) / total
        place = out + ((first_row + query) * HEADS * GROUP + head * GROUP + row % GROUP) * VALUE_SIZE + columns
        tl.store(place, result.to(out.dtype.element_ty), mask=columns < VALUE_SIZE)


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
    int32: see `TILE_FIELDS`, every token in exactly one; `tables` [M] int32: cache blocks, one session after the other.
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
    early = early_options(query.device, query.shape[0])
    keys = keys_per_turn(max(key_size, value_size), query.element_size())
    _attend_tile[(num_tiles, heads, splits)](
        query, key_cache, value_cache, tiles, tables, out, sums, peaks, totals, scale, *query.stride(), splits,
        heads, group, key_size, value_size, key_p, value_p, tiling.queries, rows, keys, splits == 1, widen,
        num_stages=2, **early,
    )  # fmt: skip
    if splits > 1:
        _merge[(num_tiles, heads, tiling.queries * group)](
            tiles, out, sums, peaks, totals, heads, group, value_size, value_p, tiling.queries, rows, splits,
            keys, num_warps=2, **early,
        )  # fmt: skip
    return out

"""Attention of a ragged batch over the paged cache, in plain torch.

Glossary. N: tokens of the flat row; H, K: query and key/value heads; G = H // K: query heads that share one
key/value head; D, Dv: size of a query/key and of a value head; tile: up to Q queries of one session, with the cache
blocks they see; T tiles of one shape form a group; M: blocks a tile's table holds, padding included.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

EXACT_TILE_QUERIES = 16
EXACT_TILE_KEYS = 128
"""Shape of every product when rows must not depend on their neighbours."""


class TileGroup(NamedTuple):
    """T tiles that are attended as one batch.

    `queries` [T * Q] int64: the flat row's token of each tile row, padding repeats one. `tables` [T, M] int64: cache
    blocks, padding names a block that holds zeros. `mask` [T, 1, G * Q, M * 16]: 0 where the query sees the key, -inf
    elsewhere; of the query's dtype. `keys` [T, M, 16, K, D] and `values` [T, M, 16, K, Dv]: scratch, shared by the
    layers.
    """

    queries: Tensor
    tables: Tensor
    mask: Tensor
    keys: Tensor
    values: Tensor


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    groups: Sequence[TileGroup],
    order: Tensor,
    scale: float,
    independent_rows: bool,
) -> Tensor:
    """Softmax attention of every token over its own session's cached tokens.

    `query` [N, H, D]; `key_cache` [blocks, 16, K, D], `value_cache` [blocks, 16, K, Dv], this batch's own tokens
    already written; `order` [N] int64: where in the groups' tile rows, one group after the other, each token's
    result is. With `independent_rows` a row's bits do not depend on what else is in the batch (see `_attend_exactly`).
    Returns [N, H, Dv].
    """
    attend = _attend_exactly if independent_rows else _attend
    results = [attend(_grouped(query, group, key_cache), key_cache, value_cache, group, scale) for group in groups]
    rows = [_ungrouped(result, query.shape[1]) for result in results]
    return (rows[0] if len(rows) == 1 else torch.cat(rows)).index_select(0, order)


def _grouped(query: Tensor, group: TileGroup, key_cache: Tensor) -> Tensor:
    """The group's queries, the heads that share keys side by side: [T, K, G * Q, D]."""
    tiles, heads = group.tables.shape[0], key_cache.shape[2]
    rows = query.index_select(0, group.queries).view(tiles, -1, heads, query.shape[1] // heads, query.shape[2])
    return rows.permute(0, 2, 3, 1, 4).flatten(2, 3)


def _ungrouped(result: Tensor, num_heads: int) -> Tensor:
    """[T, K, G * Q, Dv] back to tile rows [T * Q, H, Dv]."""
    tiles, heads, _, size = result.shape
    split = result.view(tiles, heads, num_heads // heads, -1, size)
    return split.permute(0, 3, 1, 2, 4).reshape(-1, num_heads, size)


def _attend(query: Tensor, key_cache: Tensor, value_cache: Tensor, group: TileGroup, scale: float) -> Tensor:
    """The fast form: all keys at once."""
    keys = _gather(key_cache, group.tables, group.keys)
    values = _gather(value_cache, group.tables, group.values)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=group.mask, scale=scale)


def _gather(cache: Tensor, tables: Tensor, scratch: Tensor) -> Tensor:
    """The tables' blocks as [T, K, M * 16, D]."""
    torch.index_select(cache, 0, tables.view(-1), out=scratch.flatten(0, 1))
    return scratch.flatten(1, 2).transpose(1, 2)


def _attend_exactly(query: Tensor, key_cache: Tensor, value_cache: Tensor, group: TileGroup, scale: float) -> Tensor:
    """The form whose rows are independent: every product has one shape, whatever the batch.

    Keys come in pieces of 128 and are folded in one after the other (the running softmax of arXiv 1805.02867): a
    piece that a row does not see multiplies its sums by exactly 1 and adds exactly 0, so longer neighbours leave no
    trace. Padding a tile to 16 queries does the same for the rows of each product.
    """
    tiles, heads, rows, _ = query.shape
    maximum = query.new_full((tiles, heads, rows, 1), -torch.inf)
    total = query.new_zeros(tiles, heads, rows, 1)
    result = query.new_zeros(tiles, heads, rows, value_cache.shape[3])
    block_tokens = key_cache.shape[1]
    step = EXACT_TILE_KEYS // block_tokens
    for first in range(0, group.tables.shape[1], step):
        table = group.tables[:, first : first + step].reshape(-1)
        keys = key_cache.index_select(0, table).view(tiles, -1, heads, query.shape[3])
        values = value_cache.index_select(0, table).view(tiles, -1, heads, result.shape[3])
        mask = group.mask[..., first * block_tokens : (first + step) * block_tokens]
        scores = torch.matmul(query, keys.permute(0, 2, 3, 1).contiguous()) * scale + mask
        seen = torch.maximum(maximum, scores.amax(-1, keepdim=True))
        weights, kept = torch.exp(scores - seen), torch.exp(maximum - seen)
        total = total * kept + weights.sum(-1, keepdim=True)
        result = result * kept + torch.matmul(weights, values.transpose(1, 2).contiguous())
        maximum = seen
    return result / total

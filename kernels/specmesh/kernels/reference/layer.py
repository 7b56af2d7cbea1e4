"""What a decoder layer does between its matrix products. Counterparts of `compiled.add_norm`, `compiled.gated`,
`compiled.product` and `compiled.rotary_write`, with the roundings of transformers' own layers.

A product's result comes in parts [S, N, C], whose sum over S it is: a product cut along its inner size need not be put
together before the next op reads it.
"""

import torch
from torch import Tensor
from torch.nn import functional


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows` [N, I] times `weight` [C, I], transposed: parts [1, N, C]."""
    return functional.linear(rows, weight, bias)[None]


def add_norm(parts: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The residual stream [N, C] after what `parts` [S, N, C] adds to it, and its RMS norm (arXiv 1910.07467)."""
    if parts is not None:
        residual = residual + joined(parts, residual.dtype)
    wide = residual.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return residual, weight * wide.to(residual.dtype)


def silu_gated(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """From parts [S, N, 2 C] of gate and value, side by side, to silu(gate) * value: [N, C] (arXiv 2002.05202)."""
    gate, value = joined(parts, dtype).chunk(2, dim=-1)
    return functional.silu(gate) * value


def rotary_write(
    parts: Tensor,
    cosine: Tensor,
    sine: Tensor,
    slots: Tensor,
    cache: tuple[Tensor, Tensor],
    head_norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """Rotate queries and keys by their positions (arXiv 2104.09864) and write keys and values into the cache.

    `parts` [S, N, (H + 2 K) D]: heads of queries, keys, values; `cosine`, `sine` [N, R]: the first R <= D numbers of a
    head are rotated; `slots` [N] int64: place in the caches [blocks, 16, K, D], below 0 for none. `head_norms`: weights
    [D] of a norm over each head of queries and of keys, and its epsilon. Returns the queries [N, H, D].
    """
    key_cache, value_cache = cache
    kv_heads, size = key_cache.shape[2:]
    heads = joined(parts, key_cache.dtype).unflatten(-1, (-1, size))
    query, key, value = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if head_norms is not None:
        of_query, of_key, epsilon = head_norms
        query, key = (add_norm(None, rows, norm, epsilon)[1] for rows, norm in ((query, of_query), (key, of_key)))
    query, key = (_rotated(rows, cosine[:, None], sine[:, None]) for rows in (query, key))
    written = slots >= 0
    key_cache.flatten(0, 1).index_copy_(0, slots[written], key[written])
    value_cache.flatten(0, 1).index_copy_(0, slots[written], value[written])
    return query


def _rotated(rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    size = cosine.shape[-1]
    turned, kept = rows[..., :size], rows[..., size:]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat((turned * cosine + torch.cat((-second, first), -1) * sine, kept), -1)


def joined(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of parts [S, N, C], rounded once."""
    return (parts[0] if parts.shape[0] == 1 else parts.to(torch.float32).sum(0)).to(dtype)

"""Rotate queries and keys, write keys and values. Counterpart of `reference.layer.rotary_write`."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmesh.kernels.compiled.add_norm import sum_of_parts
from specmesh.kernels.compiled.launching import early_options, let_next_launch_begin, wait_for_launch_before


@triton.jit
def _heads(
    parts, place, mask, part_stride, norm_weight, columns, epsilon, kind, SIZE: tl.constexpr, PARTS: tl.constexpr,
    NORMED: tl.constexpr,
):  # fmt: skip
    """[HEADS, SIZE_P] float32 of numbers that are rounded to `kind`."""
    rows = sum_of_parts(parts, place, part_stride, mask, PARTS).to(kind).to(tl.float32)
    if NORMED:
        rows *= tl.rsqrt(tl.sum(rows * rows, 1) / SIZE + epsilon)[:, None]
        scale = tl.load(norm_weight + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
        rows = (scale * rows.to(kind).to(tl.float32)).to(kind).to(tl.float32)
    return rows


@triton.jit
def _turned(
    parts, first_place, mask, part_stride, norm_weight, columns, epsilon, cosine, sine, kind, SIZE: tl.constexpr,
    ROTATED: tl.constexpr, PARTS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Heads [HEADS, SIZE_P] after rotation; column c of the first ROTATED turns with column c +- ROTATED / 2."""
    half: tl.constexpr = ROTATED // 2
    other = tl.where(columns < half, columns + half, tl.where(columns < ROTATED, columns - half, columns))
    sign = tl.where(columns < half, -1.0, 1.0)
    inside = columns < ROTATED
    rows = _heads(parts, first_place + columns, mask, part_stride, norm_weight, columns, epsilon, kind, SIZE, PARTS,
                  NORMED)  # fmt: skip
    across = _heads(parts, first_place + other, mask, part_stride, norm_weight, other, epsilon, kind, SIZE, PARTS,
                    NORMED)  # fmt: skip
    along = (rows * tl.load(cosine + columns, mask=inside, other=1.0).to(tl.float32)).to(kind).to(tl.float32)
    across = sign * across * tl.load(sine + columns, mask=inside, other=0.0).to(tl.float32)
    return (along + across.to(kind).to(tl.float32)).to(kind)


@triton.jit
def _rotary_write(
    parts, cosine, sine, slots, key_cache, value_cache, query_norm, key_norm, epsilon, out, part_stride, angle_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr, SIZE: tl.constexpr, SIZE_P: tl.constexpr,
    ROTATED: tl.constexpr, PARTS: tl.constexpr, NORMED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (token, key/value head): that head, its value and the GROUP query heads that share it."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, SIZE_P)[None, :]
    place = tl.load(slots + token)
    cosine += token * angle_stride
    sine += token * angle_stride
    if EARLY:
        let_next_launch_begin()
        wait_for_launch_before()
    row = token * ((GROUP + 2) * HEADS * SIZE)
    kind = out.dtype.element_ty
    shared = tl.arange(0, GROUP_P)[:, None]
    mask = (shared < GROUP) & (columns < SIZE)
    first = (head * GROUP + shared) * SIZE
    query = _turned(parts, row + first, mask, part_stride, query_norm, columns, epsilon, cosine, sine, kind, SIZE,
                    ROTATED, PARTS, NORMED)  # fmt: skip
    tl.store(out + token * (GROUP * HEADS * SIZE) + first + columns, query, mask=mask)
    if place >= 0:
        one = columns < SIZE
        to = (place * HEADS + head) * SIZE + columns
        start = row + (GROUP * HEADS + head) * SIZE + tl.zeros_like(columns)
        key = _turned(parts, start, one, part_stride, key_norm, columns, epsilon, cosine, sine, kind, SIZE, ROTATED,
                      PARTS, NORMED)  # fmt: skip
        tl.store(key_cache + to, key, mask=one)
        value = sum_of_parts(parts, start + HEADS * SIZE + columns, part_stride, one, PARTS)
        tl.store(value_cache + to, value.to(kind), mask=one)


def rotary_write(
    parts: Tensor,
    cosine: Tensor,
    sine: Tensor,
    slots: Tensor,
    cache: tuple[Tensor, Tensor],
    head_norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """Arguments as `reference.layer.rotary_write`; contiguous, but for rows of `cosine` and `sine`."""
    key_cache, value_cache = cache
    kv_heads, size = key_cache.shape[2:]
    num_parts, num_tokens, width = parts.shape
    heads = width // size - 2 * kv_heads
    group = heads // kv_heads
    query_norm, key_norm, epsilon = (parts, parts, 0.0) if head_norms is None else head_norms
    out = torch.empty(num_tokens, heads, size, dtype=key_cache.dtype, device=parts.device)
    if num_tokens:
        _rotary_write[(num_tokens, kv_heads)](
            parts, cosine, sine, slots, key_cache, value_cache, query_norm, key_norm, epsilon, out, parts.stride(0),
            cosine.stride(0), kv_heads, group, triton.next_power_of_2(group), size, triton.next_power_of_2(size),
            cosine.shape[1], num_parts, head_norms is not None, num_warps=4, **early_options(parts.device, num_tokens),
        )  # fmt: skip
    return out

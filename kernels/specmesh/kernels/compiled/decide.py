"""The rules on one session's numbers: counterpart of `reference.decide`. Vectors are `[LP]`, one element per row."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.law import divided
from specmesh.kernels.compiled.philox import philox, uniform_of

_ACCEPT = tl.constexpr(1)
_UNROLLED = tl.constexpr(8)
"""Rows of a block: code for each of more takes longer to compile than it saves."""


@triton.jit
def uniforms(key, offsets):
    """The accept uniforms at these offsets of a block; `key` = (low, high, block start)."""
    key_low, key_high, block_start = key
    zero = tl.zeros_like(offsets).to(tl.uint32)
    return uniform_of(philox(key_low, key_high, block_start + zero, offsets.to(tl.uint32), zero + _ACCEPT, zero)[0])


@triton.jit
def ratios_of(target, draft, places, length):
    """T / D; 0 behind the block's end and for a token outside its own row, which no check lets pass."""
    return tl.where((places < length) & (draft > 0.0), divided(target, draft), 0.0)


@triton.jit
def accepted_by_token(ratio, u, places, length, LP: tl.constexpr):
    """TOKEN: accept while u < T / D; a NaN accepts nothing."""
    refused = (u < ratio) == 0
    return tl.min(tl.where(refused | (places >= length), places, LP), 0)


@triton.jit
def next_reach(reach, reaches, ratio, places, i):
    """P_i, and all of them so far."""
    product = reach * tl.sum(tl.where(places == i - 1, ratio, 0.0), 0)
    reach = tl.where(product >= 1.0, 1.0, product)
    return reach, tl.where(places == i, reach, reaches)


@triton.jit
def reach_of(ratio, places, LP: tl.constexpr):
    """BLOCK: P_i, `[LP]`: P_0 = 1, P_i = min(1, P_{i-1} T / D), and a NaN stays one (a minimum would drop it)."""
    reach = tl.sum(tl.where(places == 0, 1.0, 0.0), 0)
    reaches = tl.full((LP,), 1.0, tl.float32)
    if LP <= _UNROLLED:
        for i in tl.static_range(1, LP):
            reach, reaches = next_reach(reach, reaches, ratio, places, i)
    else:
        for i in range(1, LP):
            reach, reaches = next_reach(reach, reaches, ratio, places, i)
    return reaches


@triton.jit
def accepted_by_block(reach, row_mass, inside, u, places, length):
    """BLOCK: the last i with u_{i-1} < h_i; `row_mass`, `inside`: the row's share of T, and of (P T - D)+."""
    residual = reach * (1.0 - row_mass) + inside
    residual = tl.where(residual < 0.0, 0.0, residual)
    whole = residual + 1.0 - reach
    accept = tl.where(whole == 0.0, 1.0, divided(residual, whole))
    accept = tl.where(places == length, reach, accept)
    kept = (u < accept) & (places >= 1) & (places <= length)
    return tl.max(tl.where(kept, places, 0), 0)

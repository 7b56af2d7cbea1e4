"""Integer masses of a draft's tokens, and the order they go in: `reference.rows` to the bit.

A launch that calls these must not fuse products and sums (`enable_fp_fusion=False`).
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl

from specmesh.kernels.compiled.philox import in_order
from specmesh.kernels.reference import rows

_LEAST = tl.constexpr(rows.LEAST)
_LOG2_E = tl.constexpr(rows.LOG2_E)
_LN_2_HIGH = tl.constexpr(rows.LN_2_HIGH)
_LN_2_LOW = tl.constexpr(rows.LN_2_LOW)
_EXPONENT = tl.constexpr(rows.UNIT_BITS + 127)
_TERM_7, _TERM_6, _TERM_5, _TERM_4, _TERM_3, _TERM_2 = (tl.constexpr(term) for term in rows.EXP_TERMS)
_NO_BOUND = tl.constexpr(2**63 - 1)


@triton.jit
def cooled_of(scores, peak, temperature):
    """Scores at their temperature less the maximum, rounded as division rounds."""
    return tl.div_rn(scores - peak, temperature + tl.zeros_like(scores))


@triton.jit
def units_of(cooled):
    """2^45 exp(cooled), cut to an integer; see `reference.rows.units_of`."""
    x = tl.maximum(cooled, _LEAST)
    power = tl.floor(x * _LOG2_E + 0.5)
    x = x - power * _LN_2_HIGH
    x = x - power * _LN_2_LOW
    series = x * _TERM_7 + _TERM_6
    series = series * x + _TERM_5
    series = series * x + _TERM_4
    series = series * x + _TERM_3
    series = series * x + _TERM_2
    series = series * (x * x) + x + 1.0
    scale = ((power.to(tl.int32) + _EXPONENT) << 23).to(tl.float32, bitcast=True)
    return tl.where(cooled > _LEAST, tl.maximum((series * scale).to(tl.int64), 1), 0)


@triton.jit
def needed_of(whole, share):
    """The mass from which on no more tokens are taken; `whole` int64."""
    mass = (whole.to(tl.float64) * share.to(tl.float64)).to(tl.int64)
    return tl.where(share < 1.0, tl.maximum(mass, 1), _NO_BOUND)


@triton.jit
def rank_key(cooled, columns):
    """int64, the larger the earlier: by score, the lower column first among equal ones."""
    key = in_order(tl.where(cooled == 0.0, 0.0, cooled)).to(tl.int64) << 32
    return key | (0x7FFFFFFF - columns).to(tl.int64)


@triton.jit
def first_key(cooled):
    """The least rank key of any token with this score."""
    return in_order(cooled).to(tl.int64) << 32


@triton.jit
def cooled_of_key(key):
    """The score of a rank key."""
    return in_order((key >> 32).to(tl.int32).to(tl.float32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def column_of_key(key):
    """The column of a rank key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)

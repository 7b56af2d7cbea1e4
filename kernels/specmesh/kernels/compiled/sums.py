"""Sums of floats that come out the same however a compiler lays a tile out, form by form, and a batch cuts it.

Either what is added is cut to integers, or every addition is between two numbers that are named.
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

MASS_UNITS = tl.constexpr(2.0**40)
"""Of mass, which is relative to the likeliest token's: 2^19 tokens as likely still fit in 63 bits."""
SHARE_UNITS = tl.constexpr(2.0**39)
"""To which `share_units` cuts numbers of at most 1."""
_NO_NUMBER = tl.constexpr(2**53)
"""Instead of a NaN or an infinity: more units than any sum of a chunk comes to, and 512 of them do not overflow."""
_HIGH = tl.constexpr(1.5 * 2.0**4)
"""A float32 next to it is a multiple of 2^-19."""
_LOW = tl.constexpr(1.5 * 2.0**-16)
"""Of 2^-39."""


@triton.jit
def units_of_mass(mass):
    """`MASS_UNITS` of a finite mass, int64."""
    return (mass * MASS_UNITS).to(tl.int64)


@triton.jit
def mass_of(units):
    """float32 of `MASS_UNITS`."""
    return units.to(tl.float32) * (1.0 / MASS_UNITS)


@triton.jit
def units_or_no_number(terms, UNITS: tl.constexpr):
    """Terms in units, int64. A NaN or an infinity among up to 512 of them shows in their sum (`number_of`)."""
    finite = tl.abs(terms) < float("inf")
    return tl.where(finite, (tl.where(finite, terms, 0.0) * UNITS).to(tl.int64), _NO_NUMBER)


@triton.jit
def number_of(units, UNITS: tl.constexpr):
    """The float32 that a sum of `units_or_no_number` comes to, NaN where a term was no number."""
    return tl.where(units < _NO_NUMBER, units.to(tl.float32) * (1.0 / UNITS), float("nan"))


@triton.jit
def neighbours(values, SIZE: tl.constexpr):
    """`[SIZE / 2]`: each number of `[SIZE]` at an even place and the one behind it."""
    even, odd = tl.split(tl.reshape(values, (SIZE // 2, 2)))
    return even + odd


@triton.jit
def sums_of_32(values, SIZE: tl.constexpr):
    """`[SIZE / 32]`: sums of 32 numbers of `[SIZE]` each, in an order that is in this code.

    Four quarters, then eight neighbours: what a thread holds that loads 16 bytes of 2-byte numbers at a time.
    """
    quarters = tl.permute(tl.reshape(values, (2, 2, SIZE // 4)), (2, 0, 1))
    even, odd = tl.split(quarters)
    even, odd = tl.split(even + odd)
    eighths = neighbours(even + odd, SIZE // 4)
    return neighbours(neighbours(eighths, SIZE // 8), SIZE // 16)


@triton.jit
def units_in_order(shares, SIZE: tl.constexpr):
    """int64: the sum of `[SIZE]` numbers of at most 1 in `SHARE_UNITS`, rounded as float sums of 32 are."""
    return tl.sum(units_or_no_number(sums_of_32(shares, SIZE), SHARE_UNITS), 0)


@triton.jit
def cut_in_two(shares):
    """Numbers of at most 1, rounded to `SHARE_UNITS`, as a multiple of 2^-19 and one of 2^-39 of at most 2^-20.

    float32 has room for 2^24 units: a sum of 32 of either is exact, in any order. Converting each to 64 bits gives the
    same and is slow.
    """
    high = (shares + _HIGH) - _HIGH
    return high, (shares - high + _LOW) - _LOW


@triton.jit
def share_units(shares, SIZE: tl.constexpr):
    """int64: the sum of `[SIZE]` numbers of at most 1 in `SHARE_UNITS`, as if each were converted by itself."""
    high, low = cut_in_two(shares)
    high = units_or_no_number(sums_of_32(high, SIZE), SHARE_UNITS)
    return tl.sum(high + units_or_no_number(sums_of_32(low, SIZE), SHARE_UNITS), 0)

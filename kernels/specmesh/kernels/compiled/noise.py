"""Which noise belongs to a row: known before anything is decided.

A row before the block's end is drawn from only after a rejection there, the last one only when all were kept.
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl

from specmesh.kernels.compiled.fields import (
    BLOCK_START,
    KEY_HIGH,
    KEY_LOW,
    RULE_COUPLED,
)
from specmesh.runtime.contract import Purpose

_RESIDUAL = tl.constexpr(int(Purpose.RESIDUAL))
_BONUS = tl.constexpr(int(Purpose.BONUS))
_COUPLED = tl.constexpr(int(Purpose.COUPLED))


@triton.jit
def key_of(fields):
    """(low, high, block start), uint32."""
    key_low = tl.load(fields + KEY_LOW).to(tl.uint32, bitcast=True)
    key_high = tl.load(fields + KEY_HIGH).to(tl.uint32, bitcast=True)
    return key_low, key_high, tl.load(fields + BLOCK_START).to(tl.uint32, bitcast=True)


@triton.jit
def noise_of_row(rule, length, key, offset):
    """(key low, key high, counter: start, offset, purpose) of the row at `offset`, a number or a tensor."""
    coupled = rule == RULE_COUPLED
    drawn = offset.to(tl.uint32)
    start = key[2] + tl.where(coupled, drawn, 0)
    uncoupled = tl.where(offset < length, _RESIDUAL, _BONUS)
    return key[0], key[1], start, tl.where(coupled, 0, drawn), tl.where(coupled, _COUPLED, uncoupled).to(tl.uint32)

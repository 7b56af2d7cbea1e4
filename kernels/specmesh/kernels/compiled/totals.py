"""What pass one left of each chunk, put together: the state of a row without truncation, and its arg-max."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.fields import (
    CHUNK_ARG_MAX,
    CHUNK_PEAK,
    CHUNK_TOTAL,
    EDGE,
    FINITE,
    FLOOR,
    LOG_SUM,
    PARTIAL_FIELDS,
    PEAK,
    TIE,
)
from specmesh.kernels.compiled.sums import number_of, units_or_no_number

_LOG2_E = tl.constexpr(1.4426950408889634)
_UNITS = tl.constexpr(2.0**32)
"""Of what a row weighs: fewer than of a chunk, so that as many chunks have room."""
MAX_CHUNKS = 128


@triton.jit
def row_totals(partials, rows, valid, num_chunks, temperature, CHUNKS: tl.constexpr):
    """(maximum, sum of exp relative to it) of these rows at this temperature, `[LP]`."""
    chunks = tl.arange(0, CHUNKS)[None, :]
    mask = valid[:, None] & (chunks < num_chunks)
    partial = partials + (rows[:, None] * num_chunks + chunks) * PARTIAL_FIELDS
    peaks = tl.load(partial + CHUNK_PEAK, mask=mask, other=float("-inf"))
    sums = tl.load(partial + CHUNK_TOTAL, mask=mask, other=0.0)
    peak = tl.max(peaks, 1)
    terms = sums * tl.exp2((peaks - peak[:, None]) * (_LOG2_E / temperature))
    return peak, number_of(tl.sum(units_or_no_number(terms, _UNITS), 1), _UNITS)


@triton.jit
def row_arg_max(partials, rows, valid, peak, num_chunks, vocabulary, CHUNKS: tl.constexpr):
    """The lowest column of the maximum of these rows, `[LP]`; of greedy sessions only."""
    chunks = tl.arange(0, CHUNKS)[None, :]
    mask = valid[:, None] & (chunks < num_chunks)
    partial = partials + (rows[:, None] * num_chunks + chunks) * PARTIAL_FIELDS
    peaks = tl.load(partial, mask=mask, other=float("-inf"))
    columns = tl.load(partial + CHUNK_ARG_MAX, mask=mask, other=0.0).to(tl.int32, bitcast=True)
    return tl.min(tl.where(mask & (peaks == peak[:, None]), columns, vocabulary - 1), 1)


@triton.jit
def is_finite(peak, total):
    """No NaN, no +inf, not -inf alone."""
    return (peak > float("-inf")) & (peak < float("inf")) & (total < float("inf"))


@triton.jit
def store_state(states, places, mask, state, finite):
    """Write rows' states at these places of a buffer of floats."""
    peak, log_sum, edge, tie, floor = state
    tl.store(states + places + PEAK, peak, mask=mask)
    tl.store(states + places + LOG_SUM, log_sum, mask=mask)
    tl.store(states + places + EDGE, edge, mask=mask)
    tl.store(states + places + TIE, tie.to(tl.float32, bitcast=True), mask=mask)
    tl.store(states + places + FLOOR, floor, mask=mask)
    tl.store(states + places + FINITE, finite.to(tl.float32), mask=mask)


@triton.jit
def load_state(states, places, mask):
    """((peak, log sum, edge, tie, floor), finite) of rows' states at these places; written by this launch or before."""
    state = states + places
    peak = tl.load(state + PEAK, mask=mask, other=0.0, cache_modifier=".cg")
    log_sum = tl.load(state + LOG_SUM, mask=mask, other=0.0, cache_modifier=".cg")
    edge = tl.load(state + EDGE, mask=mask, other=0.0, cache_modifier=".cg")
    tie = tl.load(state + TIE, mask=mask, other=0.0, cache_modifier=".cg").to(tl.int32, bitcast=True)
    floor = tl.load(state + FLOOR, mask=mask, other=0.0, cache_modifier=".cg")
    finite = tl.load(state + FINITE, mask=mask, other=0.0, cache_modifier=".cg") != 0.0
    return (peak, log_sum, edge, tie, floor), finite

"""From raw logits to ln T: adjusting, cooling, what truncation kept. Counterpart of `reference.law`."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# A test of a constexpr stands alone, so that its branch is left out when it does not hold.
# ruff: noqa: ANN001, ANN201, N803, SIM102

import triton
import triton.language as tl

from specmesh.kernels.compiled.fields import (
    ADJUSTED,
    ADJUSTED_UNITS,
    FREQUENCY,
    LENGTH,
    NUM_ADJUSTED,
    PENALISED,
    PRESENCE,
    REPETITION,
    SESSION_FIELDS,
    TOKENS,
    UNIT,
)

_LOG2_E = tl.constexpr(1.4426950408889634)
_LOG2_E_LOW = tl.constexpr(1.925963033500e-8)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def session_fields(meta, sessions_at, session):
    """Where a session's fields begin."""
    return meta + sessions_at + session * SESSION_FIELDS


@triton.jit
def float_field(fields, index):
    """A field that holds a float."""
    return tl.load(fields + index).to(tl.float32, bitcast=True)


@triton.jit
def exp_of(x):
    """exp(x) to about 3e-7 relative for any x: the plain one loses what rounding x * log2(e) loses."""
    high = x * _LOG2_E
    low = tl.fma(x, _LOG2_E_LOW, tl.fma(x, _LOG2_E, -high))
    return tl.where(x == float("-inf"), 0.0, tl.exp2(high) * tl.fma(low, _LN_2, 1.0))


@triton.jit
def find(ids, begin, end, wanted, mask, STRIDE: tl.constexpr):
    """Place (in entries) of each `wanted` in the ascending `ids[begin:end]`, and whether it is there.

    `begin` and `end` have the shape of `wanted`; an entry is `STRIDE` numbers, the first its id.
    """
    low = begin
    high = end
    span = tl.max(tl.ravel(tl.where(mask, end - begin, 0)), 0)
    while span > 0:
        middle = (low + high) >> 1
        open_ = mask & (low < high)
        less = tl.load(ids + middle * STRIDE, mask=open_, other=0) < wanted
        low = tl.where(open_ & less, middle + 1, low)
        high = tl.where(open_ & (less == 0), middle, high)
        span = span >> 1
    inside = mask & (low < end)
    return low, inside & (tl.load(ids + low * STRIDE, mask=inside, other=-1) == wanted)


@triton.jit
def adjusted_listed(scores, ids, place, mask, meta, fields, offset):
    """Scores after bias and penalties of ids that are listed, `place` in the list, in the row at `offset` (a number, or
    of a shape that broadcasts).

    The draft tokens before a row count as emitted; they are among the adjusted ids when the session has penalties.
    """
    number = tl.load(fields + NUM_ADJUSTED)
    listed = meta + tl.load(fields + ADJUSTED)
    bias = tl.load(listed + number + place, mask=mask, other=0).to(tl.float32, bitcast=True)
    count = tl.load(listed + 2 * number + place, mask=mask, other=0).to(tl.float32, bitcast=True)
    new = scores + bias
    if tl.load(fields + PENALISED) != 0:
        tokens = meta + tl.load(fields + TOKENS)
        for i in range(tl.load(fields + LENGTH)):
            count += tl.where((i < offset) & (ids == tl.load(tokens + i)), 1.0, 0.0)
        repetition = float_field(fields, REPETITION)
        moved = tl.where(new < 0, new * repetition, tl.div_rn(new, repetition + tl.zeros_like(new)))
        moved = moved - float_field(fields, PRESENCE) - float_field(fields, FREQUENCY) * count
        new = tl.where(count > 0, moved, new)
    return new


@triton.jit
def adjusted(scores, ids, mask, meta, fields, offset):
    """The same of any ids: each is looked for in the list."""
    listed = meta + tl.load(fields + ADJUSTED)
    units = meta + tl.load(fields + ADJUSTED_UNITS) + ids // UNIT
    begin = tl.load(units, mask=mask, other=0)
    place, found = find(listed, begin, tl.load(units + 1, mask=mask, other=0), ids, mask, 1)
    return tl.where(found, adjusted_listed(scores, ids, place, found, meta, fields, offset), scores)


@triton.jit
def scores_at(logits, rows, stride_row, stride_column, ids, mask, meta, fields, offset, ADJUST: tl.constexpr):
    """Adjusted scores of these ids in these rows, float32; 0 where masked. `rows` is int64."""
    place = logits + rows * stride_row + ids.to(tl.int64) * stride_column
    scores = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    if ADJUST:
        if tl.load(fields + NUM_ADJUSTED) > 0:
            scores = adjusted(scores, ids, mask, meta, fields, offset)
    return scores


@triton.jit
def divided(x, y):
    """x / y as division rounds it, nearly always; y positive. An infinite x, or quotient, is kept."""
    inverse = 1.0 / y
    quotient = x * inverse
    better = tl.fma(tl.fma(-quotient, y + tl.zeros_like(x), x), inverse + tl.zeros_like(x), quotient)
    return tl.where(tl.abs(quotient) < float("inf"), better, quotient)


@triton.jit
def whole_law(scores, peak, log_sum, temperature):
    """ln T of scores in a row that nothing was cut off from."""
    return divided(scores - peak, temperature) - log_sum


@triton.jit
def log_law(scores, ids, peak, log_sum, edge, tie, floor, temperature):
    """ln T of scores at these ids in a row of that state; -inf outside the law."""
    cooled = divided(scores - peak, temperature)
    kept = ((scores > edge) | ((scores == edge) & (ids <= tie))) & (cooled >= floor)
    return tl.where(kept, cooled - log_sum, float("-inf"))

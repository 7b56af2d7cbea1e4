"""The arg-max under noise of one tile of a row.

A token's noise takes two careful logarithms. A bound on it takes a quick one, and is hardly above the noise of a token
that can win. So the exact form is computed only while the best bound of four tokens is not below the best exact value:
nearly always once in the first tile of a program and never in the others.
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.law import log_law, scores_at
from specmesh.kernels.compiled.philox import in_order, noise_bound, noise_of, packed, word_of_token, words_of_quads

_LOG2_E = tl.constexpr(1.4426950408889634)
_NOTHING = tl.constexpr(-0x7F800001)
"""-inf in order."""
_NO_COLUMN = tl.constexpr(0x7FFFFFFF)
_FEW = tl.constexpr(16)


@triton.jit
def entries_around(meta, begin, end, first, stop, KP: tl.constexpr):
    """Of the ascending entries at `begin`, where those with ids in `first .. stop - 1` begin and end."""
    numbers = 0
    for at in range(begin, end, 2 * KP):
        places = at + 2 * tl.arange(0, KP)
        ids = tl.load(meta + places, mask=places < end, other=_NO_COLUMN)
        # Both counts in one sum: a row has at most 4096 entries.
        numbers += tl.sum((ids < first).to(tl.int32) + ((ids < stop).to(tl.int32) << 16), 0)
    return begin + 2 * (numbers & 0xFFFF), begin + 2 * (numbers >> 16)


@triton.jit
def bits_in(words, ids):
    """Of each word of 32 ids the bits of these ids, which are different or below 0."""
    return tl.sum(tl.where((ids >> 5)[None, :] == words[:, None], (1 << (ids & 31))[None, :], 0), 1)


@triton.jit
def bits_of_ids(ids, begin, end, first, CHUNK: tl.constexpr, STRIDE: tl.constexpr):
    """`[CHUNK / 32]`: bit j of number n for id first + 32 n + j, whether it is among the ids at `begin`, every
    `STRIDE`-th number until `end`.
    """
    words = first // 32 + tl.arange(0, CHUNK // 32)
    bits = tl.zeros((CHUNK // 32,), dtype=tl.int32)
    for at in range(begin, end, STRIDE * _FEW):
        places = at + STRIDE * tl.arange(0, _FEW)
        some = tl.load(ids + places, mask=places < end, other=-1)
        bits += bits_in(words, some)
    return bits


@triton.jit
def left_out(meta, begin, end, first, CHUNK: tl.constexpr):
    """`[CHUNK / 4]` numbers, bit j of number n for id first + 4 n + j: whether the entries at `begin` have it."""
    shift = 4 * tl.arange(0, 8)[None, :]
    return tl.reshape(bits_of_ids(meta, begin, end, first, CHUNK, 2)[:, None] >> shift, (CHUNK // 4,))


@triton.jit
def entries_in_chunk(meta, begin, end, first, CHUNK: tl.constexpr, KP: tl.constexpr):
    """(bits `[CHUNK / 4]` as `left_out` gives them, whether there are any) of the entries at `begin`."""
    out = tl.zeros((CHUNK // 4,), dtype=tl.int32)
    low = begin
    high = begin
    if end > begin:
        low, high = entries_around(meta, begin, end, first, first + CHUNK, KP)
        if high > low:
            out = left_out(meta, low, high, first, CHUNK)
    return out, high > low


@triton.jit
def words_of_tile(noise, lanes, vocabulary, token_map, MAP: tl.constexpr):
    """Words `[N, 4]` of the columns 4 * lane + 0..3; the noise goes by token id, which a head over a subset maps to."""
    key_low, key_high, start, offset, purpose = noise
    if MAP:
        columns = lanes[:, None] * 4 + tl.arange(0, 4)[None, :]
        ids = tl.load(token_map + columns, mask=columns < vocabulary, other=0)
        words = word_of_token(key_low, key_high, start, offset, purpose, ids)
    else:
        words = words_of_quads(key_low, key_high, start, offset, purpose, lanes.to(tl.uint32))
    return words


@triton.jit
def quad_exactly(
    target, vocabulary, meta, fields, row, at, quad, out, state, temperature, noise, token_map, ADJUST: tl.constexpr,
    MAP: tl.constexpr,
):  # fmt: skip
    """(score + noise, token) of the best of four tokens, without those of the bits of `out`; packed."""
    logits, stride_row, stride_column = target
    key_low, key_high, start, offset, purpose = noise
    peak, log_sum, edge, tie, floor = state
    place = tl.arange(0, 4)
    columns = quad * 4 + place
    free = (columns < vocabulary) & ((out >> place) & 1 == 0)
    scores = scores_at(logits, row, stride_row, stride_column, columns, free, meta, fields, at, ADJUST)
    log_target = log_law(scores, columns, peak, log_sum, edge, tie, floor, temperature)
    ids = columns
    if MAP:
        ids = tl.load(token_map + columns, mask=columns < vocabulary, other=0)
    drawn = noise_of(word_of_token(key_low, key_high, start, offset, purpose, ids))
    values = tl.where(free & (log_target > float("-inf")), log_target + drawn, float("-inf"))
    best = tl.max(values, 0)
    return best, packed(best, tl.min(tl.where(values == best, columns, _NO_COLUMN), 0))


@triton.jit
def best_of_tile(
    target, vocabulary, meta, fields, row, at, scores, out, any_out, lanes, state, temperature, noise, token_map,
    best, result, ADJUST: tl.constexpr, MAP: tl.constexpr,
):  # fmt: skip
    """The better of (best score + noise, that and its token packed) so far and of a tile `[N, 4]` of scores, without
    those of the bits of `out` `[N]`.
    """
    words = words_of_tile(noise, lanes, vocabulary, token_map, MAP)
    bounds = tl.fma(scores - state[0], _LOG2_E / temperature + tl.zeros_like(scores), noise_bound(words))
    if any_out:
        bounds = tl.where((out[:, None] >> tl.arange(0, 4)[None, :]) & 1 != 0, float("-inf"), bounds)
    bounds = in_order(tl.max(bounds, 1))
    most = tl.max(bounds, 0)
    while (most >= in_order((best + state[1]) * _LOG2_E)) & (most > _NOTHING):
        quad = tl.min(tl.where(bounds == most, lanes, _NO_COLUMN), 0)
        quad_out = 0
        if any_out:
            quad_out = tl.sum(tl.where(lanes == quad, out, 0), 0)
        value, candidate = quad_exactly(
            target, vocabulary, meta, fields, row, at, quad, quad_out, state, temperature, noise, token_map, ADJUST, MAP
        )
        best = tl.maximum(best, value)
        result = tl.maximum(result, candidate)
        bounds = tl.where(lanes == quad, _NOTHING, bounds)
        most = tl.max(bounds, 0)
    return best, result

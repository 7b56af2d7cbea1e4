"""Top-k, top-p and min-p of one row: the edge of what is kept, by bisection over the floats' bits.

Counterpart of `reference.truncation`. When the candidates fit in one tile the search looks at them alone; else it goes
over the whole row each time, which is slow and right.
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.law import divided, exp_of, scores_at
from specmesh.kernels.compiled.philox import in_order
from specmesh.kernels.compiled.sums import units_of_mass
from specmesh.kernels.compiled.units import needed_of

_TILE = tl.constexpr(1024)
_NO_KEY = tl.constexpr(-0x7FFFFFFF)


@triton.jit
def key_of_score(scores):
    """Integers in the order of the scores; -0 is 0."""
    return in_order(tl.where(scores == 0.0, 0.0, scores))


@triton.jit
def score_of_key(key):
    """The score of a key."""
    return in_order(key.to(tl.float32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def units_of_key(key, law):
    """What one token on it weighs."""
    return units_of_mass(exp_of(divided(score_of_key(key) - law[0], law[1])))


@triton.jit
def weigh(scores, inside, law):
    """(keys, masses in units) of tokens; nothing outside."""
    peak, temperature = law
    units = units_of_mass(tl.where(inside, exp_of(divided(scores - peak, temperature)), 0.0))
    return tl.where(inside, key_of_score(scores), _NO_KEY), units


@triton.jit
def row_tile_at(
    logits, stride_row, stride_column, vocabulary, meta, fields, row, at, first, ADJUST: tl.constexpr
):  # fmt: skip
    """(scores, columns, which are any) of the ids `first ..` of the row."""
    columns = first + tl.arange(0, _TILE)
    inside = columns < vocabulary
    scores = scores_at(logits, row, stride_row, stride_column, columns, inside, meta, fields, at, ADJUST)
    return scores, columns, inside


@triton.jit(noinline=True)
def measure_row(
    key, logits, stride_row, stride_column, vocabulary, meta, fields, row, at, peak, temperature, ADJUST: tl.constexpr
):  # fmt: skip
    """`measure` of the whole row; called, as its code within a search takes seconds to compile."""
    number = 0
    mass = tl.full((), 0, tl.int64)
    for first in range(0, vocabulary, _TILE):
        scores, _, inside = row_tile_at(
            logits, stride_row, stride_column, vocabulary, meta, fields, row, at, first, ADJUST
        )
        keys, units = weigh(scores, inside, (peak, temperature))
        number += tl.sum((inside & (keys >= key)).to(tl.int32), 0)
        mass += tl.sum(tl.where(keys >= key, units, 0), 0)
    return number, mass


@triton.jit
def measure(key, tile, fits, source, law, ADJUST: tl.constexpr):
    """(number, mass in units) of the tokens whose keys are at least `key`."""
    if fits:
        number = tl.sum((tile[0] >= key).to(tl.int32), 0)
        mass = tl.sum(tl.where(tile[0] >= key, tile[1], 0), 0)
    else:
        target, vocabulary, meta, fields, row, at = source
        number, mass = measure_row(
            key, target[0], target[1], target[2], vocabulary, meta, fields, row, at, law[0], law[1], ADJUST
        )
    return number, mass


@triton.jit
def last_key(low, high, needed, by_number, tile, fits, source, law, ADJUST: tl.constexpr):
    """(the largest key from `low` on from which tokens number, or weigh, at least `needed`, number and mass of those
    above it); nothing is at `high`.
    """
    low = low.to(tl.int64)
    high = high.to(tl.int64)
    above = tl.full((), 0, tl.int32)
    mass_above = tl.full((), 0, tl.int64)
    while high - low > 1:
        middle = (low + high) >> 1
        number, mass = measure(middle.to(tl.int32), tile, fits, source, law, ADJUST)
        enough = tl.where(by_number, number.to(tl.int64), mass) >= needed
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        above = tl.where(enough, above, number)
        mass_above = tl.where(enough, mass_above, mass)
    return low.to(tl.int32), above, mass_above


@triton.jit(noinline=True)
def last_tie_of_row(
    edge, room, logits, stride_row, stride_column, vocabulary, meta, fields, row, at, ADJUST: tl.constexpr
):  # fmt: skip
    """`last_tie` in the whole row."""
    tie = -1
    number = 0
    for first in range(0, vocabulary, _TILE):
        scores, columns, inside = row_tile_at(
            logits, stride_row, stride_column, vocabulary, meta, fields, row, at, first, ADJUST
        )
        ties = (inside & (key_of_score(scores) == edge)).to(tl.int32)
        kept = (ties != 0) & (number + tl.cumsum(ties, 0) <= room)
        tie = tl.maximum(tie, tl.max(tl.where(kept, columns, -1), 0))
        number += tl.sum(ties, 0)
    return tie


@triton.jit
def last_tie(edge, room, tile, fits, source, ADJUST: tl.constexpr):
    """The column of the `room`-th token on the edge, ids ascending."""
    if fits:
        ties = (tile[0] == edge).to(tl.int32)
        tie = tl.max(tl.where((ties != 0) & (tl.cumsum(ties, 0) <= room), tile[2], -1), 0)
    else:
        target, vocabulary, meta, fields, row, at = source
        tie = last_tie_of_row(edge, room, target[0], target[1], target[2], vocabulary, meta, fields, row, at, ADJUST)
    return tie


@triton.jit(noinline=True)
def kept_mass_of_row(
    edge, tie, floor, logits, stride_row, stride_column, vocabulary, meta, fields, row, at, peak, temperature,
    ADJUST: tl.constexpr,
):  # fmt: skip
    """`kept_mass` of the whole row."""
    mass = tl.full((), 0, tl.int64)
    for first in range(0, vocabulary, _TILE):
        scores, columns, inside = row_tile_at(
            logits, stride_row, stride_column, vocabulary, meta, fields, row, at, first, ADJUST
        )
        keys, units = weigh(scores, inside, (peak, temperature))
        kept = (keys > edge) | ((keys == edge) & (columns <= tie))
        kept = kept & (divided(scores - peak, temperature) >= floor)
        mass += tl.sum(tl.where(kept, units, 0), 0)
    return mass


@triton.jit
def kept_mass(edge, tie, floor, tile, fits, source, law, ADJUST: tl.constexpr):
    """Mass of what is kept, in units."""
    if fits:
        kept = (tile[0] > edge) | ((tile[0] == edge) & (tile[2] <= tie))
        mass = tl.sum(tl.where(kept & (tile[3] >= floor), tile[1], 0), 0)
    else:
        target, vocabulary, meta, fields, row, at = source
        mass = kept_mass_of_row(
            edge, tie, floor, target[0], target[1], target[2], vocabulary, meta, fields, row, at, law[0], law[1],
            ADJUST,
        )  # fmt: skip
    return mass


@triton.jit
def ties_for(needed, mass_above, units, vocabulary):
    """How many tokens of so many units each are taken beside `mass_above` for a mass of `needed`, one at least."""
    ties = tl.where(units > 0, (needed - mass_above + units - 1) // tl.maximum(units, 1), 1)
    return tl.minimum(tl.maximum(ties, 1), vocabulary).to(tl.int32)


@triton.jit
def edge_of(pivot, whole, limit, top_p, tile, fits, source, law, ADJUST: tl.constexpr):
    """(key of the edge, last column kept on it): of the `limit` largest the fewest that weigh `top_p` of them.

    `whole`: the row's mass in units, for when nothing is limited. Both searches are one loop, else its code were there
    twice.
    """
    vocabulary = source[1]
    edge = key_of_score(pivot)
    high = key_of_score(law[0]).to(tl.int64) + 1
    room = vocabulary
    for search in range(2):
        by_number = search == 0
        if tl.where(by_number, limit < vocabulary, top_p < 1.0):
            before = edge
            needed = tl.where(by_number, limit.to(tl.int64), needed_of(whole, top_p))
            edge, above, mass = last_key(before, high, needed, by_number, tile, fits, source, law, ADJUST)
            units = units_of_key(edge, law)
            ties = ties_for(needed, mass, units, vocabulary)
            ties = tl.where(edge == before, tl.minimum(room, ties), ties)
            room = tl.where(by_number, limit - above, ties)
            whole = tl.where(by_number, mass + room.to(tl.int64) * units, whole)
    tie = vocabulary
    if (limit < vocabulary) | (top_p < 1.0):
        tie = last_tie(edge, room, tile, fits, source, ADJUST)
    return edge, tie

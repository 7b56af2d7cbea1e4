"""A draft's row: which ids it has and their integer weights (specification 1.2).

Every mass is an integer, so a sum is the same in any order and on any device, and what goes before it are single
float32 operations in a given order. So whoever follows these steps gets the same row, bit for bit.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specmesh.runtime.contract import ROW_TOTAL

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]

MAX_ROW = 4096
"""No row may be longer: the largest weight must be able to give one to each of the others."""
UNIT_BITS = 45
"""The likeliest token has 2^45 units of mass: of the largest vocabularies 2^18 such still fit in 63 bits."""
LEAST = -104.0
"""ln of a share of the likeliest token, at and under which a token has none: where exp is 0 in float32."""
LOG2_E = 1.44269504088896341
LN_2_HIGH = 0.693359375
LN_2_LOW = -2.12194440e-4
EXP_TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""Of exp on [-ln 2 / 2, ln 2 / 2], from the seventh power down to the second (as in the Cephes library, S. Moshier)."""

_LONG_ROW = 1024
_NO_BOUND = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Cuts:
    """What bounds the rows of n sessions, `[n]` each: those of the law (`top_k` 0: off), then those of the row."""

    top_k: Int64s
    top_p: Float32s
    log_min_p: Float32s
    row_mass: Float32s
    max_row: Int64s

    def of_row(self, index: int) -> "Cuts":
        """Those of one session, `[1]` each."""
        at = slice(index, index + 1)
        return Cuts(self.top_k[at], self.top_p[at], self.log_min_p[at], self.row_mass[at], self.max_row[at])


def units_of(cooled: Float32s) -> Int64s:
    """2^45 exp(cooled), cut to an integer, for cooled <= 0; at least 1 above `LEAST`, and 0 from there on down.

    Each operation rounds to float32 by itself: products and sums must not be fused.
    """
    x = np.maximum(cooled, np.float32(LEAST))
    power = x * np.float32(LOG2_E)
    power += np.float32(0.5)
    np.floor(power, out=power)
    series = power * np.float32(LN_2_HIGH)
    x -= series
    np.multiply(power, np.float32(LN_2_LOW), out=series)
    x -= series
    np.multiply(x, np.float32(EXP_TERMS[0]), out=series)
    for term in EXP_TERMS[1:-1]:
        series += np.float32(term)
        series *= x
    series += np.float32(EXP_TERMS[-1])
    series *= x * x
    series += x
    series += np.float32(1)
    exponent = power.astype(np.int32)
    exponent += UNIT_BITS + 127
    exponent <<= 23
    series *= exponent.view(np.float32)
    units = series.astype(np.int64)
    np.maximum(units, 1, out=units)
    units[cooled <= np.float32(LEAST)] = 0
    return units


def rows_of(cooled: Float32s, cuts: Cuts) -> tuple[Int64s, Int64s]:
    """(columns ascending, weights), `[n, K]` padded with 0, of laws whose logarithms are `cooled` `[n, V]` less a
    constant: 0 at the likeliest token.

    Of equal ones the lower column goes first. The law is cut by top-k, top-p (of what top-k left) and min-p; the row
    is the fewest tokens that have `row_mass` of what is left, at most `max_row`.
    """
    if cooled.shape[1] <= _LONG_ROW:
        units = units_of(cooled)
        return _weighted(_kept(cooled, units, units.sum(axis=1), cooled.shape[1], cuts), units)
    rows = [_row_of(cooled[i], cuts.of_row(i)) for i in range(len(cooled))]
    size = max((len(columns) for columns, _ in rows), default=0)
    columns, weights = (np.zeros((len(rows), size), dtype=np.int64) for _ in range(2))
    for i, row in enumerate(rows):
        columns[i, : len(row[0])], weights[i, : len(row[0])] = row
    return columns, weights


def _row_of(cooled: Float32s, cuts: Cuts) -> tuple[Int64s, Int64s]:
    """One long row, of which only tokens that can be in it are put in order."""
    units = units_of(cooled)
    whole = units.sum(keepdims=True)
    able = _able(cooled, units, whole, cuts).nonzero()[0]
    some = units[able][None]
    columns, weights = _weighted(_kept(cooled[able][None], some, whole, len(cooled), cuts), some)
    return able[columns[0]], weights[0]


def _able(cooled: Float32s, units: Int64s, whole: Int64s, cuts: Cuts) -> NDArray[np.bool_]:
    """Tokens of one row without which it comes out the same."""
    size, limit = len(cooled), int(cuts.top_k[0])
    if 0 < limit < size:
        return cooled >= np.partition(cooled, size - limit)[size - limit]  # type: ignore[no-any-return]
    if cuts.top_p[0] >= 1 and cuts.log_min_p[0] > -np.inf:
        return cooled >= cuts.log_min_p[0]  # type: ignore[no-any-return]
    share = cuts.top_p if cuts.top_p[0] < 1 else cuts.row_mass
    # All that are lighter weigh less together than what may be left out.
    able = units >= max((int(whole[0]) - int(_needed(whole, share)[0])) // size, 1)
    limit = int(cuts.max_row[0])
    if cuts.top_p[0] < 1 or np.count_nonzero(able) <= limit:
        return able
    return able & (cooled >= np.partition(cooled[able], -limit)[-limit])  # type: ignore[no-any-return]


def _needed(whole: Int64s, share: Float32s) -> Int64s:
    """The mass from which on no more tokens are taken."""
    mass = (whole.astype(np.float64) * share.astype(np.float64)).astype(np.int64)
    return np.where(share < 1, np.maximum(mass, 1), _NO_BOUND)


def _kept(cooled: Float32s, units: Int64s, whole: Int64s, size: int, cuts: Cuts) -> NDArray[np.bool_]:
    """Which columns are in the row; `whole`: the mass of all `size` tokens, of which columns may have been left out."""
    order = np.argsort(-cooled, axis=1, kind="stable")
    ordered = np.take_along_axis(units, order, axis=1)
    total = ordered.cumsum(axis=1)
    before = total - ordered
    place = np.arange(cooled.shape[1])
    limited = (cuts.top_k > 0) & (cuts.top_k < size)
    limit = np.where(limited, cuts.top_k, size)[:, None]

    def mass_of_first(number: Int64s) -> Int64s:
        last = np.minimum(number, cooled.shape[1]) - 1
        return np.take_along_axis(total, last, axis=1)[:, 0]

    of_limited = np.where(limited, mass_of_first(limit), whole)
    kept = (place < limit) & (before < _needed(of_limited, cuts.top_p)[:, None])
    kept &= np.take_along_axis(cooled, order, axis=1) >= cuts.log_min_p[:, None]
    cut = limited | (cuts.top_p < 1) | (cuts.log_min_p > -np.inf)
    of_law = np.where(cut, mass_of_first(kept.sum(axis=1, keepdims=True)), whole)
    kept &= (place < cuts.max_row[:, None]) & (before < _needed(of_law, cuts.row_mass)[:, None]) & (ordered > 0)
    mask = np.empty_like(kept)
    np.put_along_axis(mask, order, kept, axis=1)
    return mask


def _weighted(kept: NDArray[np.bool_], units: Int64s) -> tuple[Int64s, Int64s]:
    """(columns, weights); what rounding leaves over goes to the first of the largest weights."""
    row, column = kept.nonzero()
    sizes = np.bincount(row, minlength=len(kept))
    place = np.arange(len(row)) - (np.cumsum(sizes) - sizes)[row]
    columns, taken = (np.zeros((len(kept), int(sizes.max(initial=0))), dtype=np.int64) for _ in range(2))
    columns[row, place] = column
    taken[row, place] = units[row, column]
    share = taken / taken.sum(axis=1, keepdims=True).astype(np.float64)
    weights = np.where(taken > 0, np.maximum((share * ROW_TOTAL).astype(np.int64), 1), 0)
    top = weights.argmax(axis=1)
    weights[np.arange(len(weights)), top] += ROW_TOTAL - weights.sum(axis=1)
    return columns, weights

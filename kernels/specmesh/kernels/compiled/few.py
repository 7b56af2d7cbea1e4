"""Top-k, top-p and min-p of few candidates: each is compared with every other, so all before it are known."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.law import divided, exp_of
from specmesh.kernels.compiled.sums import units_of_mass
from specmesh.kernels.compiled.units import needed_of

_OTHERS = tl.constexpr(16)
_MASS_BITS = tl.constexpr(52)
_ONE = tl.constexpr(2**52)
"""A candidate in a number that counts them above these bits and has what they weigh, which is less, in them: one sum
for both."""


@triton.jit
def before_each(candidates, number, scores, place, law, FEW: tl.constexpr):
    """`[FEW]` each: how many candidates come before it, and what they weigh in units."""
    so_far = tl.zeros((FEW,), dtype=tl.int64)
    for first in range(0, number, _OTHERS):
        others = first + tl.arange(0, _OTHERS)
        inside = others < number
        other = tl.load(candidates + 2 * others, mask=inside, other=float("-inf"), cache_modifier=".cg")
        units = units_of_mass(tl.where(inside, exp_of(divided(other - law[0], law[1])), 0.0))
        larger = other[None, :] > scores[:, None]
        lower = (other[None, :] == scores[:, None]) & (others[None, :] < place[:, None])
        before = inside[None, :] & (larger | lower)
        so_far += tl.sum(tl.where(before, (units + _ONE)[None, :], 0), 1)
    return (so_far >> _MASS_BITS).to(tl.int32), so_far & (_ONE - 1)


@triton.jit
def keep_of_few(candidates, number, limit, top_p, whole, floor, law, vocabulary, FEW: tl.constexpr):
    """(mass of what is kept, edge, last column kept on it) of candidates (score, id) `[number, 2]`, ids ascending.

    `whole`: the row's mass, which top-p is a share of when nothing is limited; both in units.
    """
    place = tl.arange(0, FEW)
    inside = place < number
    scores = tl.load(candidates + 2 * place, mask=inside, other=float("-inf"), cache_modifier=".cg")
    columns = tl.load(candidates + 2 * place + 1, mask=inside, other=0.0, cache_modifier=".cg")
    columns = columns.to(tl.int32, bitcast=True)
    cooled = divided(scores - law[0], law[1])
    units = units_of_mass(tl.where(inside, exp_of(cooled), 0.0))
    rank, mass = before_each(candidates, number, scores, place, law, FEW)
    limited = inside & (rank < limit)
    whole = tl.where(limit < vocabulary, tl.sum(tl.where(limited, units, 0), 0), whole)
    kept = limited & (mass < needed_of(whole, top_p))
    edge = tl.min(tl.where(kept, scores, float("inf")), 0)
    tie = tl.max(tl.where(kept & (scores == edge), columns, -1), 0)
    return tl.sum(tl.where(kept & (cooled >= floor), units, 0), 0), edge, tie

"""Top-k, top-p and min-p of few candidates: each is compared with every other, so all before it are known."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.law import divided, exp_of

_OTHERS = tl.constexpr(16)


@triton.jit
def before_each(candidates, number, scores, place, law, FEW: tl.constexpr):
    """`[FEW]` each: how many candidates come before it, and what they weigh."""
    rank = tl.zeros((FEW,), dtype=tl.int32)
    mass = tl.zeros((FEW,), dtype=tl.float32)
    for first in range(0, number, _OTHERS):
        others = first + tl.arange(0, _OTHERS)
        inside = others < number
        other = tl.load(candidates + 2 * others, mask=inside, other=float("-inf"), cache_modifier=".cg")
        weights = tl.where(inside, exp_of(divided(other - law[0], law[1])), 0.0)
        larger = other[None, :] > scores[:, None]
        lower = (other[None, :] == scores[:, None]) & (others[None, :] < place[:, None])
        before = inside[None, :] & (larger | lower)
        rank += tl.sum(before.to(tl.int32), 1)
        mass += tl.sum(tl.where(before, weights[None, :], 0.0), 1)
    return rank, mass


@triton.jit
def keep_of_few(candidates, number, limit, top_p, whole, floor, law, vocabulary, FEW: tl.constexpr):
    """(weight of what is kept, edge, last column kept on it) of candidates (score, id) `[number, 2]`, ids ascending.

    `whole`: the row's weight, which top-p is a share of when nothing is limited.
    """
    place = tl.arange(0, FEW)
    inside = place < number
    scores = tl.load(candidates + 2 * place, mask=inside, other=float("-inf"), cache_modifier=".cg")
    columns = tl.load(candidates + 2 * place + 1, mask=inside, other=0.0, cache_modifier=".cg")
    columns = columns.to(tl.int32, bitcast=True)
    cooled = divided(scores - law[0], law[1])
    weights = tl.where(inside, exp_of(cooled), 0.0)
    rank, mass = before_each(candidates, number, scores, place, law, FEW)
    limited = inside & (rank < limit)
    whole = tl.where(limit < vocabulary, tl.sum(tl.where(limited, weights, 0.0), 0), whole)
    kept = limited & (mass < tl.where(top_p < 1.0, top_p * whole, float("inf")))
    edge = tl.min(tl.where(kept, scores, float("inf")), 0)
    tie = tl.max(tl.where(kept & (scores == edge), columns, -1), 0)
    return tl.sum(tl.where(kept & (cooled >= floor), weights, 0.0), 0), edge, tie

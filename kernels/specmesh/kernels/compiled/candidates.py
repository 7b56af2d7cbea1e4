"""The few tokens of a row that top-k, top-p and min-p can keep, found from the maxima of its groups of ids.

If k groups have a maximum of at least t, so have k tokens: the k-th largest token is not below t. And if the maxima of
the groups from t on weigh top-p of the whole, so do the tokens from t on. A row's candidates are its tokens from such a
pivot on; only groups whose maximum reaches it are read again.
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.law import divided, exp_of, scores_at

_STEPS = tl.constexpr(8)
"""Halvings of the way from the lowest maximum to the peak: a candidate too many is cheaper than one more."""
_ROOM = tl.constexpr(1.0001)
"""For what rounding may take from sums."""
CHOSEN_TILE = tl.constexpr(1024)
"""Tokens of chosen groups at a time."""


@triton.jit
def pivot_of(maxima, peak, temperature, top_k, top_p, whole, log_min_p, vocabulary):
    """A score that no token which is kept can be below; -inf when the groups do not tell.

    `whole`: the row's weight in units of the peak's.
    """
    limited = top_k < vocabulary
    share = top_p * whole
    weights = tl.where(limited, 1.0, exp_of(divided(maxima - peak, temperature)))
    weights = tl.where(maxima > float("-inf"), weights, 0.0)
    needed = tl.where(limited, top_k.to(tl.float32), share * _ROOM)
    low = tl.min(tl.where(maxima > float("-inf"), maxima, peak), 0)
    high = peak
    for _ in range(_STEPS):
        middle = 0.5 * low + 0.5 * high
        enough = tl.sum(tl.where(maxima >= middle, weights, 0.0), 0) >= needed
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    pivot = tl.where(tl.sum(tl.where(maxima >= low, weights, 0.0), 0) >= needed, low, float("-inf"))
    # All tokens under this together weigh less than top-p may leave out; under the other, less than min-p allows.
    light = peak + tl.log((1.0 - top_p) * whole / vocabulary) * temperature
    light = tl.where(top_p < 1.0, light, peak + log_min_p * temperature)
    light = light - tl.abs(light) * 1e-5 - 1e-5
    return tl.where(limited, pivot, tl.where(top_p < 1.0, tl.maximum(pivot, light), light))


@triton.jit
def list_groups(maxima, pivot, chosen, GROUPS: tl.constexpr):
    """Numbers of the groups that reach the pivot, ascending, to `chosen`; how many there are."""
    reaches = (maxima >= pivot).to(tl.int32)
    place = tl.cumsum(reaches, 0) - 1
    tl.store(chosen + place, tl.arange(0, GROUPS), mask=reaches != 0)
    return tl.sum(reaches, 0)


@triton.jit
def load_chosen(
    target, vocabulary, meta, fields, row, at, first, chosen, num_chosen, GROUP: tl.constexpr, ADJUST: tl.constexpr
):
    """(adjusted scores, columns, which are any) `[CHOSEN_TILE]` of the chosen groups' tokens from the `first` on."""
    logits, stride_row, stride_column = target
    index = first + tl.arange(0, CHOSEN_TILE)
    inside = index < num_chosen * GROUP
    columns = tl.load(chosen + index // GROUP, mask=inside, other=0) * GROUP + index % GROUP
    inside = inside & (columns < vocabulary)
    scores = scores_at(logits, row, stride_row, stride_column, columns, inside, meta, fields, at, ADJUST)
    return scores, columns, inside


@triton.jit
def collect(
    target, vocabulary, meta, fields, row, at, pivot, chosen, num_chosen, candidates,
    GROUP: tl.constexpr, MOST: tl.constexpr, ADJUST: tl.constexpr,
):  # fmt: skip
    """Tokens of the chosen groups that reach the pivot, ids ascending, as (score, id) to `candidates` `[MOST, 2]`.

    Returns their number, also when not all were stored because it is above MOST.
    """
    number = 0
    for first in range(0, num_chosen * GROUP, CHOSEN_TILE):
        scores, columns, inside = load_chosen(
            target, vocabulary, meta, fields, row, at, first, chosen, num_chosen, GROUP, ADJUST
        )
        reaches = inside & (scores >= pivot)
        place = number + tl.cumsum(reaches.to(tl.int32), 0) - 1
        stored = reaches & (place < MOST)
        tl.store(candidates + 2 * place, scores, mask=stored)
        tl.store(candidates + 2 * place + 1, columns.to(tl.float32, bitcast=True), mask=stored)
        number += tl.sum(reaches.to(tl.int32), 0)
    return number

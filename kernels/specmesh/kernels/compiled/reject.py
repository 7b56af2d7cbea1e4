"""TOKEN and BLOCK of one session: how many drafts stand, and the best of the draft's row for the token after them."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.decide import accepted_by_block, accepted_by_token, ratios_of, reach_of
from specmesh.kernels.compiled.fields import LENGTH, ROW_BEGINS, RULE, RULE_BLOCK, TOKENS
from specmesh.kernels.compiled.law import exp_of, log_law, scores_at, whole_law
from specmesh.kernels.compiled.noise import noise_of_row
from specmesh.kernels.compiled.philox import exponential_of, in_order, packed, word_of_token
from specmesh.runtime.contract import ROW_TOTAL

_SHARE = tl.constexpr(1.0 / ROW_TOTAL)
_NO_COLUMN = tl.constexpr(0x7FFFFFFF)
_UNITS = tl.constexpr(2.0**45)
"""Probabilities are summed as integers: the same in any order, and so however a batch's longest row and block cut the
tiles."""


@triton.jit
def row_tile(target, meta, fields, key, rows, block, first, KP: tl.constexpr, ADJUST: tl.constexpr):
    """Entries `first ..` of every draft row, `[LP, KP]`: (which are any, ids, scores of the target, D, 1 / E).

    E is exponential: the arg-max of ln p + noise is that of p / E, which needs no logarithm of p.
    """
    logits, stride_row, stride_column = target
    begins, ends = block[1], block[2]
    places = begins[:, None] + 2 * (first + tl.arange(0, KP)[None, :])
    entry = places < ends[:, None]
    ids = tl.load(meta + places, mask=entry, other=_NO_COLUMN)
    weights = tl.load(meta + places + 1, mask=entry, other=0)
    offsets = tl.arange(0, begins.shape[0])[:, None]
    scores = scores_at(logits, rows[:, None], stride_row, stride_column, ids, entry, meta, fields, offsets, ADJUST)
    key_low, key_high, start, offset, purpose = noise_of_row(
        tl.load(fields + RULE), tl.load(fields + LENGTH), key, offsets
    )
    words = word_of_token(key_low, key_high, start, offset, purpose, ids)
    return entry, ids, scores, weights.to(tl.float32) * _SHARE, 1.0 / exponential_of(words)


@triton.jit
def with_law(tile, state, temperature, TRUNCATE: tl.constexpr):
    """A tile's (ids, T, D, 1 / E); T is 0 where there is no entry."""
    entry, ids, scores, draft, inverse = tile
    peak, log_sum, edge, tie, floor = state
    if TRUNCATE:
        log_target = log_law(
            scores, ids, peak[:, None], log_sum[:, None], edge[:, None], tie[:, None], floor[:, None], temperature
        )
    else:
        log_target = whole_law(scores, peak[:, None], log_sum[:, None], temperature)
    return ids, tl.where(entry, exp_of(log_target), 0.0), draft, inverse


@triton.jit
def own_entry(tile, tokens):
    """(score, D) of the drafted tokens as far as the tile has them."""
    own = tile[0] & (tile[1] == tokens[:, None])
    return tl.sum(tl.where(own, tile[2], 0.0), 1), tl.sum(tl.where(own, tile[3], 0.0), 1)


@triton.jit
def share_of(units):
    """A probability."""
    return units.to(tl.float32) * (1.0 / _UNITS)


@triton.jit
def residual_units(tile, scale):
    """(scale * T - D)+ of a tile in units."""
    left = scale[:, None] * tile[1] - tile[2]
    return (tl.where(left > 0.0, left, 0.0) * _UNITS).to(tl.int64)


@triton.jit
def of_both(mass, inside, best, best_of_law, other_mass, other_inside, other_best, other_best_of_law):
    """What `of_tile` says of two parts of a row, of the row."""
    return (
        mass + other_mass,
        inside + other_inside,
        tl.maximum(best, other_best),
        tl.maximum(best_of_law, other_best_of_law),
    )


@triton.jit
def ratio_of(best):
    """p / E of a number that `packed` made."""
    return in_order((best >> 32).to(tl.int32).to(tl.float32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def token_of(best):
    """The token of a number that `packed` made."""
    return 0x7FFFFFFF - best.to(tl.int32)


@triton.jit
def residual_ratios(tile, scale):
    """(scale * T - D)+ / E."""
    return tl.maximum(scale[:, None] * tile[1] - tile[2], 0.0) * tile[3]


@triton.jit
def of_tile(tile, scale):
    """Each row's (T, (scale T - D)+, best p / E and its id for p the residual, and for p = T), `[LP]`, the first two
    summed in units.

    One reduction for all: each is a trip through shared memory that nothing else hides.
    """
    parts = (
        (tile[1] * _UNITS).to(tl.int64),
        residual_units(tile, scale),
        packed(residual_ratios(tile, scale), tile[0]),
        packed(tile[1] * tile[3], tile[0]),
    )
    return tl.reduce(parts, 1, of_both)


@triton.jit
def through_rows(
    target, meta, fields, key, rows, block, tile, state, temperature, scale, longest, KP: tl.constexpr,
    LONG: tl.constexpr, ADJUST: tl.constexpr, TRUNCATE: tl.constexpr,
):  # fmt: skip
    """`of_tile` of whole rows; `tile`: their first."""
    mass, inside, best, best_of_law = of_tile(tile, scale)
    if LONG:
        for first in range(KP, longest, KP):
            more = row_tile(target, meta, fields, key, rows, block, first, KP, ADJUST)
            here = of_tile(with_law(more, state, temperature, TRUNCATE), scale)
            mass, inside, best, best_of_law = of_both(
                mass, inside, best, best_of_law, here[0], here[1], here[2], here[3]
            )
    return mass, inside, best, best_of_law


@triton.jit
def block_of(meta, fields, length, LP: tl.constexpr):
    """(drafted tokens, where their rows' entries begin and end), `[LP]`."""
    places = tl.arange(0, LP)
    drafted = places < length
    tokens = tl.load(meta + tl.load(fields + TOKENS) + places, mask=drafted, other=-1)
    row_begins = meta + tl.load(fields + ROW_BEGINS) + places
    begins = tl.load(row_begins, mask=drafted, other=0)
    return tokens, begins, tl.load(row_begins + 1, mask=drafted, other=0)


@triton.jit
def accepted_of(rule, scale, mass, inside, ratio, u, places, length, LP: tl.constexpr):
    """How many drafts stand; `mass` and `inside` in units."""
    if rule == RULE_BLOCK:
        accepted = accepted_by_block(scale, share_of(mass), share_of(inside), u, places, length)
    else:
        accepted = accepted_by_token(ratio, u, places, length, LP)
    return accepted


@triton.jit
def own_in_rows(
    target, meta, fields, key, rows, block, own, longest, KP: tl.constexpr, LONG: tl.constexpr, ADJUST: tl.constexpr
):  # fmt: skip
    """(score, D) of the drafted tokens; `own`: as far as the first tile has them."""
    score, draft = own
    if LONG:
        for first in range(KP, longest, KP):
            here = own_entry(row_tile(target, meta, fields, key, rows, block, first, KP, ADJUST), block[0])
            score, draft = score + here[0], draft + here[1]
    return score, draft


@triton.jit
def decide(
    target, meta, fields, rule, key, rows, length, block, first_tile, own, u, state, temperature, LP: tl.constexpr,
    KP: tl.constexpr, LONG: tl.constexpr, ADJUST: tl.constexpr, TRUNCATE: tl.constexpr,
):  # fmt: skip
    """(accepted, ln T of the drafted tokens, each row's best own id: ln of (p / E / P), id).

    An empty residual is so by rounding: then p is T, and the logarithm -inf. Rows longer than a tile (LONG: the batch
    has some) are gone through again, once P is known.
    """
    places = tl.arange(0, LP)
    longest = tl.max(block[2] - block[1], 0) // 2
    tile = with_law(first_tile, state, temperature, TRUNCATE)
    score, draft = own_in_rows(target, meta, fields, key, rows, block, own, longest, KP, LONG, ADJUST)
    peak, log_sum, edge, tie, floor = state
    log_target = log_law(score, block[0], peak, log_sum, edge, tie, floor, temperature)
    ratio = ratios_of(exp_of(log_target), draft, places, length)
    scale = tl.full((LP,), 1.0, tl.float32)
    if rule == RULE_BLOCK:
        scale = reach_of(ratio, places, LP)
    mass, inside, best, best_of_law = through_rows(
        target, meta, fields, key, rows, block, tile, state, temperature, scale, longest, KP, LONG, ADJUST, TRUNCATE
    )
    accepted = accepted_of(rule, scale, mass, inside, ratio, u, places, length, LP)
    left = ratio_of(best)
    token = tl.where(left == 0.0, token_of(best_of_law), token_of(best))
    return accepted, log_target, tl.log(left) - tl.log(scale), token

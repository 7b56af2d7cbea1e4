"""TOKEN and BLOCK of one session: how many drafts stand, and the best of the draft's row for the token after them."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.decide import accepted_by_block, accepted_by_token, reach_of
from specmesh.kernels.compiled.fields import LENGTH, ROW_BEGINS, RULE, RULE_BLOCK, TOKENS
from specmesh.kernels.compiled.law import divided, exp_of, log_law, scores_at, whole_law
from specmesh.kernels.compiled.noise import noise_of_row
from specmesh.kernels.compiled.philox import exponential_of, word_of_token
from specmesh.runtime.contract import ROW_TOTAL

_SHARE = tl.constexpr(1.0 / ROW_TOTAL)
_NO_COLUMN = tl.constexpr(0x7FFFFFFF)
_UNITS = tl.constexpr(2.0**45)


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
def units_in_row(shares):
    """Sum of each row `[LP, KP]` of probabilities in units of 2^-45, int64: the same in any order, and so however a
    batch's longest row and block cut the tiles.
    """
    return tl.sum((shares * _UNITS).to(tl.int64), 1)


@triton.jit
def share_of(units):
    """A probability."""
    return units.to(tl.float32) * (1.0 / _UNITS)


@triton.jit
def tile_inside(tile, scale):
    """Sum of (scale * T - D)+ over each row of a tile, in units."""
    left = scale[:, None] * tile[1] - tile[2]
    return units_in_row(tl.where(left > 0.0, left, 0.0))


@triton.jit
def best_of_ratios(ratios, ids):
    """Each row's best of `[LP, KP]`: (p / E, token); of equal ones the lower id."""
    most = tl.max(ratios, 1)
    return most, tl.min(tl.where(ratios == most[:, None], ids, _NO_COLUMN), 1)


@triton.jit
def better(best, ratios, ids):
    """The better of (p / E, token) `[LP]` and each row's best of `[LP, KP]`; of equal ones the lower id."""
    most, token = best_of_ratios(ratios, ids)
    wins = (most > best[0]) | ((most == best[0]) & (token < best[1]))
    return tl.where(wins, most, best[0]), tl.where(wins, token, best[1])


@triton.jit
def residual_ratios(tile, scale):
    """(scale * T - D)+ / E."""
    return tl.maximum(scale[:, None] * tile[1] - tile[2], 0.0) * tile[3]


@triton.jit
def through_rows(
    target, meta, fields, key, rows, block, tile, state, temperature, scale, longest, residual, KP: tl.constexpr,
    ADJUST: tl.constexpr, TRUNCATE: tl.constexpr,
):  # fmt: skip
    """Each row's (sum of (scale T - D)+ in units, best p / E, its id), `[LP]`; p the residual or T.

    A ratio of 0 is no draw.
    """
    inside = tile_inside(tile, scale)
    best = best_of_ratios(tl.where(residual, residual_ratios(tile, scale), tile[1] * tile[3]), tile[0])
    for first in range(KP, longest, KP):
        more = row_tile(target, meta, fields, key, rows, block, first, KP, ADJUST)
        more = with_law(more, state, temperature, TRUNCATE)
        inside += tile_inside(more, scale)
        best = better(best, tl.where(residual, residual_ratios(more, scale), more[1] * more[3]), more[0])
    return inside, best[0], best[1]


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
def is_empty(best, places, accepted):
    """Whether the residual is empty where the block ends; it is so by rounding."""
    return tl.max(tl.where((places == accepted) & (best == 0.0), 1, 0), 0) > 0


@triton.jit
def decide(
    target, meta, fields, rule, key, rows, length, block, first_tile, own, u, state, temperature, LP: tl.constexpr,
    KP: tl.constexpr, LONG: tl.constexpr, ADJUST: tl.constexpr, TRUNCATE: tl.constexpr,
):  # fmt: skip
    """(accepted, ln T of the drafted tokens, each row's best own id: ln of (p / E / P), id).

    An empty residual is so by rounding: then p is T, and the logarithm -inf. Rows longer than a tile (LONG: the batch
    has some) are gone through again for each sum; the code for that is there as few times as can be, as it is what
    takes long to compile.
    """
    places = tl.arange(0, LP)
    longest = tl.max(block[2] - block[1], 0) // 2
    score, draft = own
    tile = with_law(first_tile, state, temperature, TRUNCATE)
    mass = units_in_row(tile[1])
    if LONG:
        for first in range(KP, longest, KP):
            more = row_tile(target, meta, fields, key, rows, block, first, KP, ADJUST)
            here = own_entry(more, block[0])
            mass += units_in_row(with_law(more, state, temperature, TRUNCATE)[1])
            score, draft = score + here[0], draft + here[1]
    peak, log_sum, edge, tie, floor = state
    log_target = log_law(score, block[0], peak, log_sum, edge, tie, floor, temperature)
    ratio = tl.where(places < length, divided(exp_of(log_target), draft), 0.0)
    scale = tl.full((LP,), 1.0, tl.float32)
    if rule == RULE_BLOCK:
        scale = reach_of(ratio, places, LP)
    if LONG:
        accepted = length * 0
        best, token = scale, block[0]
        times, number = 0, 1
        while times < number:
            inside, most, token = through_rows(
                target, meta, fields, key, rows, block, tile, state, temperature, scale, longest, times == 0, KP,
                ADJUST, TRUNCATE,
            )  # fmt: skip
            if times == 0:
                best = most
                accepted = accepted_of(rule, scale, mass, inside, ratio, u, places, length, LP)
                number = tl.where(is_empty(best, places, accepted), 2, 1)
            times += 1
    else:
        inside = mass
        if rule == RULE_BLOCK:
            inside = tile_inside(tile, scale)
        accepted = accepted_of(rule, scale, mass, inside, ratio, u, places, length, LP)
        best, token = best_of_ratios(residual_ratios(tile, scale), tile[0])
        if is_empty(best, places, accepted):
            token = best_of_ratios(tile[1] * tile[3], tile[0])[1]
    return accepted, log_target, tl.log(best) - tl.log(scale), token

"""Launches two and three of `draft_step` (one is `pass_one`): whole masses, then each session's row and token."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.candidates import CHOSEN_TILE, list_groups, load_chosen, pivot_of
from specmesh.kernels.compiled.fields import (
    CHUNK_PEAK,
    DRAFT_FIELDS,
    DRAFT_FINITE,
    DRAFT_OFFSET,
    DRAFT_SIZE,
    DRAFT_TOKEN,
    DRAFT_WEIGHT,
    LOG_MIN_P,
    MAX_ROW,
    PARTIAL_FIELDS,
    ROW_MASS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)
from specmesh.kernels.compiled.launching import let_next_launch_begin, wait_for_launch_before
from specmesh.kernels.compiled.law import float_field, session_fields
from specmesh.kernels.compiled.noise import key_of
from specmesh.kernels.compiled.pass_one import chunk_scores, load_chunk
from specmesh.kernels.compiled.philox import philox
from specmesh.kernels.compiled.totals import is_finite, row_totals
from specmesh.kernels.compiled.units import (
    column_of_key,
    cooled_of,
    cooled_of_key,
    first_key,
    needed_of,
    rank_key,
    units_of,
)
from specmesh.runtime.contract import ROW_TOTAL, Purpose

_DRAFT = tl.constexpr(int(Purpose.DRAFT))
_TOTAL = tl.constexpr(ROW_TOTAL)
_NO_KEY = tl.constexpr(-0x7FFFFFFFFFFFFFFF)
_LAST_KEY = tl.constexpr(0x7FFFFFFF)
"""The rank key of a score of 0 has nothing above it but this in its lower half."""
_OTHERS = tl.constexpr(16)
_TILE = tl.constexpr(256)
_LONG_TILE = tl.constexpr(1024)


@triton.jit(do_not_specialize=["sessions_at"])
def row_units(
    logits, stride_row, stride_column, vocabulary, meta, sessions_at, partials, masses, num_chunks,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, ADJUST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (chunk, row). `masses` `[R, C]` int64: what each chunk weighs."""
    if EARLY:
        let_next_launch_begin()
    row = tl.program_id(1).to(tl.int64)
    fields = session_fields(meta, sessions_at, tl.load(meta + row))
    first = tl.program_id(0) * CHUNK
    lanes = first // 4 + tl.arange(0, CHUNK // 4)
    raw = load_chunk((logits, stride_row, stride_column), vocabulary, row, lanes)
    if EARLY:
        wait_for_launch_before()
    chunks = tl.arange(0, CHUNKS)
    partial = partials + (row * num_chunks + chunks) * PARTIAL_FIELDS + CHUNK_PEAK
    peak = tl.max(tl.load(partial, mask=chunks < num_chunks, other=float("-inf")), 0)
    scores = chunk_scores(raw, vocabulary, meta, fields, lanes, first, 0, CHUNK, ADJUST)
    units = units_of(cooled_of(scores, peak, float_field(fields, TEMPERATURE)))
    tl.store(masses + row * num_chunks + tl.program_id(0), tl.sum(tl.sum(units, 1), 0))


@triton.jit
def list_candidates(
    target, vocabulary, meta, fields, row, law, pivot, chosen, num_chosen, listed, GROUP: tl.constexpr,
    ADJUST: tl.constexpr,
):  # fmt: skip
    """Rank keys of the chosen groups' tokens from `pivot` (a cooled score) on, columns ascending, to `listed`; how many
    there are.
    """
    number = 0
    for first in range(0, num_chosen * GROUP, CHOSEN_TILE):
        scores, columns, inside = load_chosen(
            target, vocabulary, meta, fields, row, 0, first, chosen, num_chosen, GROUP, ADJUST
        )
        cooled = cooled_of(scores, law[0], law[1])
        reaches = inside & (cooled >= pivot)
        place = number + tl.cumsum(reaches.to(tl.int32), 0) - 1
        tl.store(listed + place, rank_key(cooled, columns), mask=reaches)
        number += tl.sum(reaches.to(tl.int32), 0)
    return number


@triton.jit
def mass_from(listed, number, key):
    """(how many of the list are at least `key`, what they weigh)."""
    count = tl.zeros((_LONG_TILE,), dtype=tl.int32)
    mass = tl.zeros((_LONG_TILE,), dtype=tl.int64)
    for first in range(0, number, _LONG_TILE):
        place = first + tl.arange(0, _LONG_TILE)
        keys = tl.load(listed + place, mask=place < number, other=_NO_KEY, cache_modifier=".cg")
        reaches = (place < number) & (keys >= key)
        count += reaches.to(tl.int32)
        mass += tl.where(reaches, units_of(cooled_of_key(keys)), 0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def last_enough(listed, number, low, high, most, needed):
    """The largest key from which on the list has `most` tokens or the mass `needed`; `low` when it never has."""
    while high - low > 1:
        # Both are far enough from the ends of 64 bits for half the distance to be right.
        middle = low + ((high - low) >> 1)
        count, mass = mass_from(listed, number, middle)
        enough = (count >= most) | (mass >= needed)
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def edge_of_many(listed, number, lowest, whole, bounds):
    """The least rank key of the row, by bisection; `lowest` is below every key of the list."""
    limit, limited, top_p, floor, row_mass, max_row = bounds
    high = tl.full((), _LAST_KEY + 1, tl.int64)
    no_mass = tl.full((), 0x7FFFFFFFFFFFFFFF, tl.int64)
    edge = lowest
    of_law = whole
    if limited:
        edge = last_enough(listed, number, edge, high, limit, no_mass)
        of_law = mass_from(listed, number, edge)[1]
    if top_p < 1.0:
        edge = tl.maximum(edge, last_enough(listed, number, edge, high, 0x7FFFFFFF, needed_of(of_law, top_p)))
    edge = tl.maximum(edge, floor)
    if limited | (top_p < 1.0) | (floor > _NO_KEY):
        of_law = mass_from(listed, number, edge)[1]
    return tl.maximum(edge, last_enough(listed, number, edge, high, max_row, needed_of(of_law, row_mass)))


@triton.jit
def before_each(listed, number, keys):
    """`[TILE]` each: how many of the list come before it, and what they weigh."""
    rank = tl.zeros((_TILE,), dtype=tl.int32)
    mass = tl.zeros((_TILE,), dtype=tl.int64)
    for first in range(0, number, _OTHERS):
        place = first + tl.arange(0, _OTHERS)
        others = tl.load(listed + place, mask=place < number, other=_NO_KEY, cache_modifier=".cg")
        units = tl.where(place < number, units_of(cooled_of_key(others)), 0)
        before = others[None, :] > keys[:, None]
        rank += tl.sum(before.to(tl.int32), 1)
        mass += tl.sum(tl.where(before, units[None, :], 0), 1)
    return rank, mass


@triton.jit
def edge_of_few(listed, number, whole, bounds):
    """The same when the list fits in a tile: all that comes before each is known at once."""
    limit, limited, top_p, floor, row_mass, max_row = bounds
    place = tl.arange(0, _TILE)
    keys = tl.load(listed + place, mask=place < number, other=_NO_KEY, cache_modifier=".cg")
    units = tl.where(place < number, units_of(cooled_of_key(keys)), 0)
    rank, mass = before_each(listed, number, keys)
    kept = (place < number) & (rank < limit)
    of_law = whole
    if limited:
        of_law = tl.sum(tl.where(kept, units, 0), 0)
    kept = kept & (mass < needed_of(of_law, top_p)) & (keys >= floor)
    if limited | (top_p < 1.0) | (floor > _NO_KEY):
        of_law = tl.sum(tl.where(kept, units, 0), 0)
    kept = kept & (rank < max_row) & (mass < needed_of(of_law, row_mass))
    return tl.min(tl.where(kept, keys, _LAST_KEY), 0)


@triton.jit
def weights_of(listed, first, number, edge, total):
    """(rank keys, which are in the row, their weights before what is left over is given) of a tile of the list."""
    place = first + tl.arange(0, _TILE)
    keys = tl.load(listed + place, mask=place < number, other=_NO_KEY, cache_modifier=".cg")
    units = units_of(cooled_of_key(keys))
    kept = (place < number) & (keys >= edge) & (units > 0)
    share = units.to(tl.float64) / total
    return keys, kept, tl.where(kept, tl.maximum((share * _TOTAL).to(tl.int32), 1), 0)


@triton.jit
def emit_row(listed, number, edge, token_map, draw, out, room, MAP: tl.constexpr):
    """Writes the row and the token that `draw` in [0, 2^24) gives."""
    total = (mass_from(listed, number, edge)[1]).to(tl.float64)
    largest = 0
    largest_at = 0
    given = 0
    for first in range(0, number, _TILE):
        _, _, weights = weights_of(listed, first, number, edge, total)
        given += tl.sum(weights, 0)
        most = tl.max(weights, 0)
        at = first + tl.min(tl.where(weights == most, tl.arange(0, _TILE), _TILE), 0)
        largest_at = tl.where(most > largest, at, largest_at)
        largest = tl.maximum(most, largest)
    size = 0
    below = 0
    for first in range(0, number, _TILE):
        keys, kept, weights = weights_of(listed, first, number, edge, total)
        weights += tl.where(first + tl.arange(0, _TILE) == largest_at, _TOTAL - given, 0)
        ids = column_of_key(keys)
        if MAP:
            ids = tl.load(token_map + ids, mask=kept, other=0).to(tl.int32)
        place = size + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(out + DRAFT_FIELDS + place, ids, mask=kept)
        tl.store(out + DRAFT_FIELDS + room + place, weights, mask=kept)
        ends = below + tl.cumsum(weights, 0)
        drawn = kept & (ends > draw) & (ends - weights <= draw)
        tl.store(out + DRAFT_TOKEN + place * 0, ids, mask=drawn)
        tl.store(out + DRAFT_WEIGHT + place * 0, weights, mask=drawn)
        size += tl.sum(kept.to(tl.int32), 0)
        below += tl.sum(weights, 0)
    tl.store(out + DRAFT_SIZE, size)


@triton.jit
def draw_of(fields):
    """The top 24 bits of one word at (block start, offset, draft, 0)."""
    key_low, key_high, start = key_of(fields)
    zero = tl.zeros((1,), tl.uint32)
    offset = tl.load(fields + DRAFT_OFFSET).to(tl.uint32)
    word = philox(key_low, key_high, start + zero, offset + zero, zero + _DRAFT, zero)[0]
    return tl.sum((word >> 8).to(tl.int32), 0)


@triton.jit(do_not_specialize=["sessions_at", "room"])
def draft_row(
    logits, stride_row, stride_column, vocabulary, meta, sessions_at, partials, masses, groups, chosen, listed,
    token_map, out, num_chunks, num_groups, room, CHUNKS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    ADJUST: tl.constexpr, MAP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (row). `chosen` `[R, G]` int32, `listed` `[R, V]` int64: room to work in; `out` `[R, 4 + 2 room]`."""
    if EARLY:
        let_next_launch_begin()
    row = tl.program_id(0).to(tl.int64)
    fields = session_fields(meta, sessions_at, tl.load(meta + row))
    draw = draw_of(fields)
    temperature = float_field(fields, TEMPERATURE)
    top_k = tl.load(fields + TOP_K)
    top_p = float_field(fields, TOP_P)
    log_min_p = float_field(fields, LOG_MIN_P)
    row_mass = float_field(fields, ROW_MASS)
    max_row = tl.load(fields + MAX_ROW)
    if EARLY:
        wait_for_launch_before()
    out += row * (DRAFT_FIELDS + 2 * room)
    rows = row + tl.zeros((1,), dtype=tl.int64)
    peaks, totals = row_totals(partials, rows, rows >= 0, num_chunks, temperature, CHUNKS)
    peak = tl.max(peaks, 0)
    total = tl.sum(totals, 0)
    finite = is_finite(peak, total)
    tl.store(out + DRAFT_FINITE, finite.to(tl.int32))
    if finite == 0:
        return
    chunks = tl.arange(0, CHUNKS)
    whole = tl.sum(tl.load(masses + row * num_chunks + chunks, mask=chunks < num_chunks, other=0), 0)
    limited = top_k < vocabulary
    cut = limited | (top_p < 1.0) | (log_min_p > float("-inf"))
    group = tl.arange(0, GROUPS)
    maxima = tl.load(groups + row * num_groups + group, mask=group < num_groups, other=float("-inf"))
    pivot = pivot_of(
        maxima, peak, temperature, tl.where(cut, top_k, tl.minimum(max_row, vocabulary)),
        tl.where(cut, top_p, row_mass), total, log_min_p, vocabulary,
    )  # fmt: skip
    pivot = tl.max(cooled_of(tl.zeros((1,), tl.float32) + pivot, peak, temperature), 0)
    chosen += row * num_groups
    num_chosen = list_groups(cooled_of(maxima, peak, temperature), pivot, chosen, GROUPS)
    tl.debug_barrier()
    listed += row * vocabulary
    target = (logits, stride_row, stride_column)
    law = (peak, temperature)
    number = list_candidates(
        target, vocabulary, meta, fields, row, law, pivot, chosen, num_chosen, listed, GROUP, ADJUST
    )
    tl.debug_barrier()
    floor = tl.where(log_min_p > float("-inf"), first_key(log_min_p), _NO_KEY)
    bounds = (top_k, limited, top_p, floor, row_mass, max_row)
    if number <= _TILE:
        edge = edge_of_few(listed, number, whole, bounds)
    else:
        edge = edge_of_many(listed, number, first_key(pivot) - 1, whole, bounds)
    emit_row(listed, number, edge, token_map, draw, out, room, MAP)

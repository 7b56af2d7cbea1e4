"""Launch one: every row of logits is read once; each chunk leaves its maximum and its sum of exp."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# A test of a constexpr stands alone, so that its branch is left out when it does not hold.
# ruff: noqa: ANN001, ANN201, N803, SIM102

import triton
import triton.language as tl

from specmesh.kernels.compiled.fields import (
    ADJUSTED,
    ADJUSTED_UNITS,
    CHUNK_ARG_MAX,
    CHUNK_PEAK,
    CHUNK_TOTAL,
    MOVED_ROW,
    NUM_ADJUSTED,
    PARTIAL_FIELDS,
    ROW_START,
    RULE,
    RULE_GREEDY,
    TEMPERATURE,
    TRUNCATED,
    UNIT,
)
from specmesh.kernels.compiled.launching import let_next_launch_begin, wait_for_launch_before
from specmesh.kernels.compiled.law import adjusted, adjusted_listed, float_field, session_fields
from specmesh.kernels.compiled.pick import bits_in
from specmesh.kernels.compiled.sums import (
    SHARE_UNITS,
    number_of,
    share_units,
    units_in_order,
)

_LOG2_E = tl.constexpr(1.4426950408889634)
_LISTED = tl.constexpr(128)
_MARKED = tl.constexpr(16)
"""Listed ids at a time: of their scores, and as bits."""


@triton.jit
def chunk_is_adjusted(meta, fields, first, vocabulary, CHUNK: tl.constexpr):
    """Whether any id of the chunk that begins at `first` is listed for adjusting."""
    result = tl.load(fields + NUM_ADJUSTED) > 0
    if result:
        units = meta + tl.load(fields + ADJUSTED_UNITS)
        stop = tl.minimum(first + CHUNK, vocabulary)
        result = tl.load(units + (stop + UNIT - 1) // UNIT) > tl.load(units + first // UNIT)
    return result


@triton.jit
def load_chunk(target, stop, row, lanes):
    """Raw logits `[N, 4]` of these quads of ids; -inf from `stop` on."""
    logits, stride_row, stride_column = target
    columns = lanes[:, None] * 4 + tl.arange(0, 4)[None, :]
    place = logits + row * stride_row + columns.to(tl.int64) * stride_column
    return tl.load(place, mask=columns < stop, other=float("-inf"))


@triton.jit
def chunk_scores(raw, vocabulary, meta, fields, lanes, first, at, CHUNK: tl.constexpr, ADJUST: tl.constexpr):
    """Adjusted scores `[CHUNK / 4, 4]` of the ids `first ..` of a row, which is at offset `at`."""
    scores = raw.to(tl.float32)
    if ADJUST:
        if chunk_is_adjusted(meta, fields, first, vocabulary, CHUNK):
            columns = lanes[:, None] * 4 + tl.arange(0, 4)[None, :]
            scores = adjusted(scores, columns, columns < vocabulary, meta, fields, at)
    return scores


@triton.jit
def leave_groups(scores, groups, SIZE: tl.constexpr, GROUP: tl.constexpr):
    """Maxima of every GROUP of scores `[SIZE]`."""
    tl.store(groups + tl.arange(0, SIZE // GROUP), tl.max(tl.reshape(scores, (SIZE // GROUP, GROUP)), 1))


@triton.jit
def leave_chunk(
    row_of, columns, vocabulary, temperature, greedy, truncated, partial, groups, CHUNK: tl.constexpr,
    GROUP: tl.constexpr, TRUNCATE: tl.constexpr,
):  # fmt: skip
    """What later launches need of a chunk that nothing is adjusted in; it is read once."""
    logits, stride_column = row_of
    place = logits + columns.to(tl.int64) * stride_column
    scores = tl.load(place, mask=columns < vocabulary, other=float("-inf")).to(tl.float32)
    peak = tl.max(scores, 0)
    total = units_in_order(tl.exp2((scores - base_of(peak)) * (_LOG2_E / temperature)), CHUNK)
    tl.store(partial + CHUNK_PEAK, peak)
    tl.store(partial + CHUNK_TOTAL, number_of(total, SHARE_UNITS))
    if greedy:
        best = tl.min(tl.where(scores == peak, columns, vocabulary), 0)
        tl.store(partial + CHUNK_ARG_MAX, best.to(tl.float32, bitcast=True))
    if TRUNCATE:
        if truncated:
            leave_groups(scores, groups, CHUNK, GROUP)


@triton.jit
def base_of(peak):
    """A chunk of nothing but -inf weighs nothing; a NaN makes its sum NaN."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def load_moved(meta, fields, place, end, first, at, CHUNK: tl.constexpr):
    """The listed ids at `place` up to `end` that are of the chunk and moved in this row; -1 for the others.

    Where the list's ids of a chunk begin and end is known by units, which may be larger than a chunk.
    """
    moves = meta + tl.load(fields + ADJUSTED) + 3 * tl.load(fields + NUM_ADJUSTED)
    move = tl.load(moves + place, mask=place < end, other=-1)
    ids = move & (MOVED_ROW - 1)
    return tl.where((move >= 0) & (move < (at + 1) * MOVED_ROW) & (ids >= first) & (ids < first + CHUNK), ids, -1)


@triton.jit
def moved_scores(row_of, meta, fields, begin, end, first, at, CHUNK: tl.constexpr):
    """(scores, ids) of a tile of `load_moved`; -inf where the id is -1."""
    logits, stride_column = row_of
    place = begin + tl.arange(0, _LISTED)
    ids = load_moved(meta, fields, place, end, first, at, CHUNK)
    raw = tl.load(logits + ids.to(tl.int64) * stride_column, mask=ids >= 0, other=float("-inf")).to(tl.float32)
    return tl.where(ids >= 0, adjusted_listed(raw, ids, place, ids >= 0, meta, fields, at), float("-inf")), ids


@triton.jit
def bits_of_moved(meta, fields, begin, end, first, at, CHUNK: tl.constexpr):
    """`[CHUNK / 32]` numbers, bit j of number n: whether id first + 32 n + j is moved in this row."""
    words = first // 32 + tl.arange(0, CHUNK // 32)
    bits = tl.zeros((CHUNK // 32,), dtype=tl.int32)
    for some in range(begin, end, _MARKED):
        place = some + tl.arange(0, _MARKED)
        bits += bits_in(words, load_moved(meta, fields, place, end, first, at, CHUNK))
    return bits


@triton.jit
def leave_adjusted(
    row_of, first, vocabulary, meta, fields, at, temperature, greedy, truncated, partial, groups,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, TRUNCATE: tl.constexpr,
):  # fmt: skip
    """The same of a chunk that may have ids to adjust: those that are moved in this row are left out of it and gone
    through by themselves, as they are few.

    The list has more of them: what was drafted, where there are penalties. The sum must not change with that. So what
    is left out follows from the row's law, what is added to the rest is exact, however it lies in the list, and where
    nothing is moved the sum is that of `leave_chunk`.
    """
    logits, stride_column = row_of
    units = meta + tl.load(fields + ADJUSTED_UNITS)
    begin = tl.load(units + first // UNIT)
    end = tl.load(units + (tl.minimum(first + CHUNK, vocabulary) + UNIT - 1) // UNIT)
    columns = first + tl.arange(0, CHUNK)
    bits = bits_of_moved(meta, fields, begin, end, first, at, CHUNK)
    out = tl.reshape((bits[:, None] >> tl.arange(0, 32)[None, :]) & 1, (CHUNK,)) != 0
    place = logits + columns.to(tl.int64) * stride_column
    scores = tl.load(place, mask=(columns < vocabulary) & (out == 0), other=float("-inf")).to(tl.float32)
    peak = tl.max(scores, 0)
    for some in range(begin, end, _LISTED):
        peak = tl.maximum(peak, tl.max(moved_scores(row_of, meta, fields, some, end, first, at, CHUNK)[0], 0))
    base = base_of(peak)
    scale = _LOG2_E / temperature
    total = units_in_order(tl.exp2((scores - base) * scale), CHUNK)
    best = tl.min(tl.where(scores == peak, columns, vocabulary), 0)
    if TRUNCATE:
        leave_groups(scores, groups, CHUNK, GROUP)
        tl.debug_barrier()
    for some in range(begin, end, _LISTED):
        by_itself, ids = moved_scores(row_of, meta, fields, some, end, first, at, CHUNK)
        total += share_units(tl.exp2((by_itself - base) * scale), _LISTED)
        best = tl.minimum(best, tl.min(tl.where((ids >= 0) & (by_itself == peak), ids, vocabulary), 0))
        if TRUNCATE:
            tl.atomic_max(groups + (ids - first) // GROUP, by_itself, mask=ids >= 0)
    tl.store(partial + CHUNK_PEAK, peak)
    tl.store(partial + CHUNK_TOTAL, number_of(total, SHARE_UNITS))
    if greedy:
        tl.store(partial + CHUNK_ARG_MAX, best.to(tl.float32, bitcast=True))


@triton.jit(do_not_specialize=["sessions_at"])
def pass_one(
    logits, stride_row, stride_column, vocabulary, meta, sessions_at, partials, groups, num_chunks, num_groups,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, ADJUST: tl.constexpr, TRUNCATE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Program (chunk, row). `partials` `[R, C, 4]`; `groups` `[R, G]`: maxima of every GROUP ids, where truncated."""
    if EARLY:
        # Launch two reads logits before it waits: they are there once what this one follows has ended.
        wait_for_launch_before()
        let_next_launch_begin()
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    fields = session_fields(meta, sessions_at, tl.maximum(tl.load(meta + row), 0))
    first = chunk * CHUNK
    row_of = (logits + row * stride_row, stride_column)
    temperature = float_field(fields, TEMPERATURE)
    greedy = tl.load(fields + RULE) == RULE_GREEDY
    truncated = tl.load(fields + TRUNCATED) != 0
    partial = partials + (row * num_chunks + chunk) * PARTIAL_FIELDS
    groups += row * num_groups + chunk * (CHUNK // GROUP)
    is_adjusted = False
    if ADJUST:
        is_adjusted = chunk_is_adjusted(meta, fields, first, vocabulary, CHUNK)
    if is_adjusted:
        at = row.to(tl.int32) - tl.load(fields + ROW_START)
        leave_adjusted(
            row_of, first, vocabulary, meta, fields, at, temperature, greedy, truncated, partial, groups, CHUNK,
            GROUP, TRUNCATE,
        )  # fmt: skip
    else:
        columns = first + tl.arange(0, CHUNK)
        leave_chunk(
            row_of, columns, vocabulary, temperature, greedy, truncated, partial, groups, CHUNK, GROUP, TRUNCATE
        )

"""Launch one: every row of logits is read once; each chunk leaves its maximum and its sum of exp."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# A test of a constexpr stands alone, so that its branch is left out when it does not hold.
# ruff: noqa: ANN001, ANN201, N803, SIM102

import triton
import triton.language as tl

from specmesh.kernels.compiled.fields import (
    ADJUSTED_UNITS,
    CHUNK_ARG_MAX,
    CHUNK_PEAK,
    CHUNK_TOTAL,
    NUM_ADJUSTED,
    PARTIAL_FIELDS,
    ROW_START,
    RULE,
    RULE_GREEDY,
    TEMPERATURE,
    TRUNCATED,
    UNIT,
)
from specmesh.kernels.compiled.launching import let_next_launch_begin
from specmesh.kernels.compiled.law import adjusted, float_field, session_fields

_LOG2_E = tl.constexpr(1.4426950408889634)


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
    total = tl.sum(tl.exp2((scores - base_of(peak)) * (_LOG2_E / temperature)), 0)
    tl.store(partial + CHUNK_PEAK, peak)
    tl.store(partial + CHUNK_TOTAL, total)
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
def leave_adjusted(
    row_of, first, vocabulary, meta, fields, at, temperature, greedy, truncated, partial, groups,
    CHUNK: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr, TRUNCATE: tl.constexpr,
):  # fmt: skip
    """The same of a chunk with ids to adjust: twice in small tiles, as the search for each takes many registers.

    Apart from the other, whose sums would else change with what adjusting does to the layout of scores.
    """
    logits, stride_column = row_of
    peak = tl.max(tl.full((1,), float("-inf"), tl.float32), 0)
    total = tl.sum(tl.zeros((1,), tl.float32), 0)
    best = vocabulary
    for number in range(2 * (CHUNK // TILE)):
        tile = number % (CHUNK // TILE)
        columns = first + tile * TILE + tl.arange(0, TILE)
        inside = columns < vocabulary
        place = logits + columns.to(tl.int64) * stride_column
        scores = tl.load(place, mask=inside, other=float("-inf")).to(tl.float32)
        scores = adjusted(scores, columns, inside, meta, fields, at)
        if number < CHUNK // TILE:
            peak = tl.maximum(peak, tl.max(scores, 0))
            if TRUNCATE:
                if truncated:
                    leave_groups(scores, groups + tile * (TILE // GROUP), TILE, GROUP)
        else:
            total += tl.sum(tl.exp2((scores - base_of(peak)) * (_LOG2_E / temperature)), 0)
            best = tl.minimum(best, tl.min(tl.where(scores == peak, columns, vocabulary), 0))
    tl.store(partial + CHUNK_PEAK, peak)
    tl.store(partial + CHUNK_TOTAL, total)
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
            512 if CHUNK > 512 else CHUNK, GROUP, TRUNCATE,
        )  # fmt: skip
    else:
        columns = first + tl.arange(0, CHUNK)
        leave_chunk(
            row_of, columns, vocabulary, temperature, greedy, truncated, partial, groups, CHUNK, GROUP, TRUNCATE
        )

"""Launch three: the arg-max under noise, over the row that each session draws from, under COUPLED over all its rows.

It is over the ids that the draft's row does not have: among those launch two has drawn, as they are few and their
residual is not the target's law.
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# A test of a constexpr stands alone, so that its branch is left out when it does not hold.
# ruff: noqa: ANN001, ANN201, N803, SIM102

import triton
import triton.language as tl

from specmesh.kernels.compiled.emit import emit_prefix
from specmesh.kernels.compiled.fields import (
    CHUNK_PEAK,
    DRAW_ROW,
    ENTRIES_BEGIN,
    ENTRIES_END,
    LENGTH,
    OUT_FIELDS,
    PARTIAL_FIELDS,
    ROW_START,
    RULE,
    RULE_COUPLED,
    STATE_FIELDS,
    TEMPERATURE,
)
from specmesh.kernels.compiled.launching import let_next_launch_begin, wait_for_launch_before
from specmesh.kernels.compiled.law import float_field, log_law, scores_at, session_fields
from specmesh.kernels.compiled.noise import key_of, noise_of_row
from specmesh.kernels.compiled.pass_one import chunk_scores, load_chunk
from specmesh.kernels.compiled.pick import best_of_tile, entries_in_chunk
from specmesh.kernels.compiled.totals import load_state


@triton.jit
def tile_is_empty(partials, row, first, num_chunks, state, CHUNK: tl.constexpr):
    """Whether truncation kept nothing of the chunk that the tile lies in: it is all below the edge."""
    partial = partials + (row * num_chunks + first // CHUNK) * PARTIAL_FIELDS
    return tl.load(partial + CHUNK_PEAK) < state[2]


@triton.jit
def draw_tile(
    raw, target, vocabulary, meta, fields, row, at, first, entries, state, temperature, noise, token_map,
    best, result, TILE: tl.constexpr, KP: tl.constexpr, ADJUST: tl.constexpr, TRUNCATE: tl.constexpr, MAP: tl.constexpr,
):  # fmt: skip
    """The better of (best, result) and of the tile of ids `first ..`, whose logits are `raw`."""
    lanes = first // 4 + tl.arange(0, TILE // 4)
    scores = chunk_scores(raw, vocabulary, meta, fields, lanes, first, at, TILE, ADJUST)
    out, any_out = entries_in_chunk(meta, entries[0], entries[1], first, TILE, KP)
    if TRUNCATE:
        place = tl.arange(0, 4)[None, :]
        peak, log_sum, edge, tie, floor = state
        log_target = log_law(scores, lanes[:, None] * 4 + place, peak, log_sum, edge, tie, floor, temperature)
        out = out | tl.sum(tl.where(log_target > float("-inf"), 0, 1 << place), 1)
        any_out = tl.max(out, 0) > 0
    return best_of_tile(
        target, vocabulary, meta, fields, row, at, scores, out, any_out, lanes, state, temperature, noise, token_map,
        best, result, ADJUST, MAP,
    )  # fmt: skip


@triton.jit
def draw_tiles(
    target, vocabulary, meta, fields, partials, row, at, entries, loaded, temperature, noise, token_map, num_chunks,
    tiles, TILE: tl.constexpr, CHUNK: tl.constexpr, KP: tl.constexpr, ADJUST: tl.constexpr, TRUNCATE: tl.constexpr,
    MAP: tl.constexpr,
):  # fmt: skip
    """(best score + noise, that and its token packed) of this program's tiles; `loaded`: the row's state, finite."""
    best = tl.full((), float("-inf"), tl.float32)
    result = tl.full((), -0x7FFFFFFFFFFFFFFF, tl.int64)
    first = tl.program_id(0) * tiles * TILE
    stop = tl.minimum(first + tiles * TILE, vocabulary)
    lanes = tl.arange(0, TILE // 4)
    following = load_chunk(target, stop, row, first // 4 + lanes)
    for tile in range(first, stop, TILE):
        raw = following
        # On its way while this tile is worked on.
        following = load_chunk(target, stop, row, (tile + TILE) // 4 + lanes)
        empty = loaded[1] == 0
        if TRUNCATE:
            empty = empty | tile_is_empty(partials, row, tile, num_chunks, loaded[0], CHUNK)
        if empty == 0:
            best, result = draw_tile(
                raw, target, vocabulary, meta, fields, row, at, tile, entries, loaded[0], temperature, noise,
                token_map, best, result, TILE, KP, ADJUST, TRUNCATE, MAP,
            )  # fmt: skip
    return best, result


@triton.jit
def emit_rows(
    target, meta, fields, session, states, row_draws, out, drawn, logprobs, LP: tl.constexpr, ADJUST: tl.constexpr
):
    """COUPLED, when all rows are drawn."""
    logits, stride_row, stride_column = target
    places = tl.arange(0, LP)
    rows = (tl.load(fields + ROW_START) + places).to(tl.int64)
    valid = places <= tl.load(fields + LENGTH)
    state, finite = load_state(states, rows * STATE_FIELDS, valid)
    tokens = tl.load(row_draws + rows, mask=valid, other=0, cache_modifier=".cg").to(tl.int32)
    tokens = 0x7FFFFFFF - (tokens & 0x7FFFFFFF)
    accepted = emit_prefix(meta, fields, session, tokens, finite, out, drawn, LP)
    emitted = (places <= accepted) & finite
    scores = scores_at(logits, rows, stride_row, stride_column, tokens, emitted, meta, fields, places, ADJUST)
    peak, log_sum, edge, tie, floor = state
    log_target = log_law(scores, tokens, peak, log_sum, edge, tie, floor, float_field(fields, TEMPERATURE))
    tl.store(logprobs + rows, log_target, mask=emitted)


@triton.jit(do_not_specialize=["sessions_at", "tiles"], do_not_specialize_on_alignment=["out", "drawn", "logprobs"])
def sample(
    logits, stride_row, stride_column, vocabulary, meta, sessions_at, partials, states, row_draws, arrived, out, drawn,
    logprobs, token_map, num_chunks, tiles, TILE: tl.constexpr, CHUNK: tl.constexpr, LP: tl.constexpr,
    KP: tl.constexpr, ADJUST: tl.constexpr, TRUNCATE: tl.constexpr, BY_ROW: tl.constexpr, MAP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Program (`tiles` tiles, session), or (.., row) when a session of the batch is COUPLED.

    `token_map`: the ids of a head over a subset of the vocabulary; columns are drawn, by the noise of their ids.
    """
    if EARLY:
        let_next_launch_begin()
    session = tl.program_id(1)
    if BY_ROW:
        session = tl.load(meta + session)
        if session < 0:
            return
    fields = session_fields(meta, sessions_at, session)
    rule = tl.load(fields + RULE)
    coupled = rule == RULE_COUPLED
    length = tl.load(fields + LENGTH)
    key = key_of(fields)
    start = tl.load(fields + ROW_START)
    temperature = float_field(fields, TEMPERATURE)
    if EARLY:
        wait_for_launch_before()
    record = out + session * OUT_FIELDS
    row = tl.load(record + DRAW_ROW).to(tl.int64)
    entries = (tl.load(record + ENTRIES_BEGIN), tl.load(record + ENTRIES_END))
    if BY_ROW:
        if coupled:
            row = tl.program_id(1).to(tl.int64)
            entries = (row.to(tl.int32) * 0, row.to(tl.int32) * 0)
        if row != tl.program_id(1):
            return
    if row < 0:
        return
    target = (logits, stride_row, stride_column)
    at = row.to(tl.int32) - start
    loaded = load_state(states, row * STATE_FIELDS, row >= 0)
    noise = noise_of_row(rule, length, key, at)
    best, result = draw_tiles(
        target, vocabulary, meta, fields, partials, row, at, entries, loaded, temperature, noise, token_map,
        num_chunks, tiles, TILE, CHUNK, KP, ADJUST, TRUNCATE, MAP,
    )  # fmt: skip
    if BY_ROW:
        if coupled:
            tl.atomic_max(row_draws + row, result)
            tl.debug_barrier()
            programs = tl.num_programs(0) * (length + 1)
            if tl.atomic_add(arrived + session, 1) == programs - 1:
                tl.store(arrived + session, 0)
                emit_rows(target, meta, fields, session, states, row_draws, out, drawn, logprobs, LP, ADJUST)
            return
    if best > float("-inf"):
        tl.atomic_max(drawn + session, result, sem="relaxed")

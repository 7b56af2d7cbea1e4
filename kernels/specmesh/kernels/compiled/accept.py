"""Launch two: every session's decision from a few numbers per row; greedy sessions are done with it."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.decide import uniforms
from specmesh.kernels.compiled.emit import emit_prefix
from specmesh.kernels.compiled.fields import (
    ACCEPTED,
    ALL_FINITE,
    DRAW_ROW,
    ENTRIES_BEGIN,
    ENTRIES_END,
    LENGTH,
    OUT_FIELDS,
    ROW_START,
    RULE,
    RULE_BLOCK,
    RULE_GREEDY,
    RULE_TOKEN,
    STATE_FIELDS,
    TEMPERATURE,
)
from specmesh.kernels.compiled.launching import let_next_launch_begin, wait_for_launch_before
from specmesh.kernels.compiled.law import float_field, session_fields
from specmesh.kernels.compiled.noise import key_of
from specmesh.kernels.compiled.philox import packed
from specmesh.kernels.compiled.reject import block_of, decide, own_entry, row_tile
from specmesh.kernels.compiled.totals import is_finite, load_state, row_arg_max, row_totals, store_state

_NOTHING_DRAWN = tl.constexpr(-0x7FFFFFFFFFFFFFFF)


@triton.jit
def reject(
    target, meta, fields, rule, session, rows, length, block, tile, own, u, state, finite, temperature, key, out, drawn,
    logprobs, LP: tl.constexpr, KP: tl.constexpr, LONG: tl.constexpr, ADJUST: tl.constexpr, TRUNCATE: tl.constexpr,
):  # fmt: skip
    """TOKEN and BLOCK; a block is cut before the row that is not finite.

    What is drawn among the ids of the draft's row goes where launch three adds to it.
    """
    places = tl.arange(0, LP)
    first_bad = tl.min(tl.where((finite == 0) & (places <= length), places, length + 1), 0)
    cut = tl.minimum(length, first_bad)
    accepted, log_target, best, token = decide(
        target, meta, fields, rule, key, rows, cut, block, tile, own, u, state, temperature, LP, KP, LONG, ADJUST,
        TRUNCATE,
    )  # fmt: skip
    last = places == accepted
    good = accepted != first_bad
    draw = tl.where(places < cut, packed(best, token), _NOTHING_DRAWN)
    session_out = out + session * OUT_FIELDS
    tl.store(session_out + ACCEPTED, accepted)
    tl.store(session_out + ALL_FINITE, good.to(tl.int32))
    tl.store(session_out + DRAW_ROW + places * 0, tl.where(good, rows.to(tl.int32), -1), mask=last)
    chosen = last & (places < cut)
    tl.store(session_out + ENTRIES_BEGIN + places * 0, tl.where(chosen, block[1], 0), mask=last)
    tl.store(session_out + ENTRIES_END + places * 0, tl.where(chosen, block[2], 0), mask=last)
    tl.store(drawn + session + places * 0, draw, mask=last)
    tl.store(logprobs + rows, log_target, mask=places < accepted)


@triton.jit
def accept_session(
    target, vocabulary, meta, sessions_at, session, partials, states, row_draws, out, drawn, logprobs, num_chunks,
    LP: tl.constexpr, CHUNKS: tl.constexpr, KP: tl.constexpr, LONG: tl.constexpr, ADJUST: tl.constexpr,
    TRUNCATE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One session by its rule."""
    fields = session_fields(meta, sessions_at, session)
    rule = tl.load(fields + RULE)
    temperature = float_field(fields, TEMPERATURE)
    length = tl.load(fields + LENGTH)
    places = tl.arange(0, LP)
    valid = places <= length
    rows = (tl.load(fields + ROW_START) + places).to(tl.int64)
    key = key_of(fields)
    by_rejection = (rule == RULE_TOKEN) | (rule == RULE_BLOCK)
    block = block_of(meta, fields, tl.where(by_rejection, length, 0), LP)
    tile = row_tile(target, meta, fields, key, rows, block, 0, KP, ADJUST)
    own = own_entry(tile, block[0])
    u = uniforms(key, tl.where(rule == RULE_BLOCK, places - 1, places))
    if EARLY:
        # All that launch one has no part in is done by now.
        let_next_launch_begin()
        wait_for_launch_before()
    if TRUNCATE:
        state, finite = load_state(states, rows * STATE_FIELDS, valid)
    else:
        peak, total = row_totals(partials, rows, valid, num_chunks, temperature, CHUNKS)
        finite = is_finite(peak, total)
        nowhere = tl.full((LP,), float("-inf"), tl.float32)
        state = (peak, tl.log(total), nowhere, tl.zeros_like(places) + vocabulary, nowhere)
        store_state(states, rows * STATE_FIELDS, valid, state, finite)
    if by_rejection:
        reject(
            target, meta, fields, rule, session, rows, length, block, tile, own, u, state, finite, temperature, key,
            out, drawn, logprobs, LP, KP, LONG, ADJUST, TRUNCATE,
        )  # fmt: skip
    else:
        tl.store(out + session * OUT_FIELDS + DRAW_ROW, -1)
        if rule == RULE_GREEDY:
            best = row_arg_max(partials, rows, valid, state[0], num_chunks, vocabulary, CHUNKS)
            accepted = emit_prefix(meta, fields, session, best, finite, out, drawn, LP)
            tl.store(logprobs + rows, -state[1], mask=places <= accepted)
        else:
            tl.store(row_draws + rows, tl.zeros_like(rows) + _NOTHING_DRAWN, mask=valid)


@triton.jit(do_not_specialize=["sessions_at"], do_not_specialize_on_alignment=["out", "drawn", "logprobs"])
def accept(
    logits, stride_row, stride_column, vocabulary, meta, sessions_at, partials, states, row_draws, out, drawn, logprobs,
    num_chunks, LP: tl.constexpr, CHUNKS: tl.constexpr, KP: tl.constexpr, LONG: tl.constexpr, ADJUST: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Program (session): no session of the batch is truncated."""
    accept_session(
        (logits, stride_row, stride_column), vocabulary, meta, sessions_at, tl.program_id(0), partials, states,
        row_draws, out, drawn, logprobs, num_chunks, LP, CHUNKS, KP, LONG, ADJUST, False, EARLY,
    )  # fmt: skip

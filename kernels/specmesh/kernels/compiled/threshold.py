"""Launch two of a batch in which a session is truncated: the state of every row, then each session's decision."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.accept import accept_session
from specmesh.kernels.compiled.candidates import collect, list_groups, pivot_of
from specmesh.kernels.compiled.few import keep_of_few
from specmesh.kernels.compiled.fields import (
    LENGTH,
    LOG_MIN_P,
    ROW_START,
    STATE_FIELDS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    TRUNCATED,
)
from specmesh.kernels.compiled.launching import let_next_launch_begin, wait_for_launch_before
from specmesh.kernels.compiled.law import divided, float_field, session_fields
from specmesh.kernels.compiled.sums import mass_of, units_of_mass
from specmesh.kernels.compiled.totals import is_finite, row_totals, store_state
from specmesh.kernels.compiled.truncate import edge_of, kept_mass, score_of_key, weigh


@triton.jit
def load_candidates(candidates, number, law, MOST: tl.constexpr):
    """One tile of them: (keys, masses, columns, cooled scores)."""
    place = tl.arange(0, MOST)
    inside = place < number
    scores = tl.load(candidates + 2 * place, mask=inside, other=float("-inf"), cache_modifier=".cg")
    columns = tl.load(candidates + 2 * place + 1, mask=inside, other=0.0, cache_modifier=".cg")
    keys, units = weigh(scores, inside, law)
    cooled = divided(scores - law[0], law[1])
    return keys, units, columns.to(tl.int32, bitcast=True), cooled


@triton.jit
def truncated_state(
    target, vocabulary, meta, fields, row, at, peak, whole, groups, chosen, candidates, num_groups,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, FEW: tl.constexpr, MOST: tl.constexpr, ADJUST: tl.constexpr,
):  # fmt: skip
    """(what is kept weighs, edge, tie, floor) of a row that weighs `whole`, both in units of the peak's weight."""
    law = (peak, float_field(fields, TEMPERATURE))
    limit = tl.load(fields + TOP_K)
    top_p = float_field(fields, TOP_P)
    floor = float_field(fields, LOG_MIN_P)
    group = tl.arange(0, GROUPS)
    maxima = tl.load(groups + group, mask=group < num_groups, other=float("-inf"), cache_modifier=".cg")
    pivot = pivot_of(maxima, peak, law[1], limit, top_p, whole, floor, vocabulary)
    num_chosen = list_groups(maxima, pivot, chosen, GROUPS)
    tl.debug_barrier()
    number = collect(
        target, vocabulary, meta, fields, row, at, pivot, chosen, num_chosen, candidates, GROUP, MOST, ADJUST
    )
    tl.debug_barrier()
    whole = units_of_mass(whole)
    if number <= FEW:
        mass, edge, tie = keep_of_few(candidates, number, limit, top_p, whole, floor, law, vocabulary, FEW)
    else:
        tile = load_candidates(candidates, tl.minimum(number, MOST), law, MOST)
        source = (target, vocabulary, meta, fields, row, at)
        key, tie = edge_of(pivot, whole, limit, top_p, tile, number <= MOST, source, law, ADJUST)
        mass = kept_mass(key, tie, floor, tile, number <= MOST, source, law, ADJUST)
        edge = score_of_key(key)
    return mass_of(mass), edge, tie, floor


@triton.jit(do_not_specialize=["sessions_at"], do_not_specialize_on_alignment=["out", "drawn", "logprobs"])
def threshold(
    logits, stride_row, stride_column, vocabulary, meta, sessions_at, partials, groups, chosen, candidates, states,
    row_draws, arrived, out, drawn, logprobs, num_chunks, num_groups, LP: tl.constexpr, CHUNKS: tl.constexpr,
    KP: tl.constexpr, LONG: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, FEW: tl.constexpr,
    MOST: tl.constexpr, ADJUST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (row). A session's last one decides. `chosen` `[R, G]`, `candidates` `[R, MOST, 2]`: room to work in."""
    if EARLY:
        let_next_launch_begin()
        wait_for_launch_before()
    session = tl.load(meta + tl.program_id(0))
    if session < 0:
        return
    target = (logits, stride_row, stride_column)
    row = tl.program_id(0).to(tl.int64)
    rows = row + tl.zeros((1,), dtype=tl.int64)
    fields = session_fields(meta, sessions_at, session)
    peaks, totals = row_totals(partials, rows, rows >= 0, num_chunks, float_field(fields, TEMPERATURE), CHUNKS)
    peak = tl.max(peaks, 0)
    total = tl.sum(totals, 0)
    finite = is_finite(peak, total)
    edge = peak * 0.0 + float("-inf")
    floor = edge
    tie = vocabulary
    kept = total
    if finite & (tl.load(fields + TRUNCATED) != 0):
        at = row.to(tl.int32) - tl.load(fields + ROW_START)
        kept, edge, tie, floor = truncated_state(
            target, vocabulary, meta, fields, row, at, peak, total, groups + row * num_groups,
            chosen + row * num_groups, candidates + row * 2 * MOST, num_groups, GROUP, GROUPS, FEW, MOST, ADJUST,
        )  # fmt: skip
    store_state(states, row * STATE_FIELDS, row >= 0, (peak, tl.log(kept), edge, tie, floor), finite)
    tl.debug_barrier()
    if tl.atomic_add(arrived + session, 1) == tl.load(fields + LENGTH):
        tl.store(arrived + session, 0)
        accept_session(
            target, vocabulary, meta, sessions_at, session, partials, states, row_draws, out, drawn, logprobs,
            num_chunks, LP, CHUNKS, KP, LONG, ADJUST, True, False,
        )  # fmt: skip

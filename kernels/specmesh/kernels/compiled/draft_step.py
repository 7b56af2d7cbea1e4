"""`draft_step` on the device: rows are made and drawn from there; what is deterministic is a step of block length 0."""

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specmesh.kernels.compiled.draft_plan import (
    DraftCapacity,
    DraftForm,
    DraftPlan,
    DraftTuning,
    DrawnRows,
    pack_rows,
)
from specmesh.kernels.compiled.forms import Tuning
from specmesh.kernels.compiled.heads import Head, head_of
from specmesh.kernels.compiled.verify import MAX_ROWS, doubled, run
from specmesh.kernels.inputs import DraftedToken, DraftInput, VerifyInput
from specmesh.kernels.packing import check_counts, check_draft_shapes
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import encode_row
from specmesh.runtime.types import Rule

_thread = threading.local()
Guess = tuple[int, float, bool]
"""Token, ln of its probability under the draft's own law, whether the logits were finite."""


@torch.inference_mode()
def draft_step(
    logits: Tensor,
    inputs: Sequence[DraftInput],
    *,
    vocabulary_size: int,
    token_map: Tensor | None = None,
    tuning: tuple[Tuning, DraftTuning] | None = None,
) -> list[DraftedToken]:
    """As `specmesh.kernels.ops.draft_step`. Buffers are kept per thread, device and head, and grow by doubling."""
    head = _checked_head(logits, inputs, vocabulary_size, token_map)
    tokens: dict[int, DraftedToken] = {}
    sure = [b for b, item in enumerate(inputs) if is_deterministic(item)]
    for b, guess in zip(sure, _guesses(logits, inputs, sure, head, tuning), strict=True):
        tokens[b] = DraftedToken(guess[0], None, guess[1], guess[2])
    some = [b for b, item in enumerate(inputs) if not is_deterministic(item)]
    if some:
        drawn = _rows(logits, inputs, some, head, tuning)
        logprobs = _log_shares(drawn.weights)
        each = zip(some, drawn.token_ids.tolist(), drawn.rows, logprobs, drawn.finite.tolist(), strict=True)
        for b, token_id, row, logprob, finite in each:
            tokens[b] = DraftedToken(token_id, encode_row(*row), logprob, finite)
    return [tokens[b] for b in range(len(inputs))]


@torch.inference_mode()
def score_tokens(
    logits: Tensor,
    inputs: Sequence[DraftInput],
    token_ids: Sequence[int],
    *,
    vocabulary_size: int,
    token_map: Tensor | None = None,
    tuning: tuple[Tuning, DraftTuning] | None = None,
) -> list[tuple[float, bool]]:
    """As `specmesh.kernels.ops.score_tokens`."""
    head = _checked_head(logits, inputs, vocabulary_size, token_map)
    scores = [-np.inf] * len(inputs)
    guessed = [False] * len(inputs)
    some = [b for b, item in enumerate(inputs) if not item.sampling.greedy]
    if some:
        drawn = _rows(logits, inputs, some, head, tuning)
        for b, (ids, weights), finite in zip(some, drawn.rows, drawn.finite.tolist(), strict=True):
            own = weights[ids == token_ids[b]]
            if finite and len(own):
                scores[b] = _log_shares(own)[0]
    sure = [b for b, item in enumerate(inputs) if is_deterministic(item)]
    for b, guess in zip(sure, _guesses(logits, inputs, sure, head, tuning), strict=True):
        guessed[b] = guess[2] and guess[0] == token_ids[b]
        if inputs[b].sampling.greedy and guessed[b]:
            scores[b] = 0.0
    return list(zip(scores, guessed, strict=True))


def _log_shares(weights: NDArray[np.int32]) -> list[float]:
    """ln D of these weights, by the reference's operations."""
    return (torch.from_numpy(weights.astype(np.float32)) / ROW_TOTAL).log().tolist()


def is_deterministic(item: DraftInput) -> bool:
    """Temperature 0 and COUPLED: no row."""
    return item.sampling.greedy or item.rule is Rule.COUPLED


def _checked_head(logits: Tensor, inputs: Sequence[DraftInput], vocabulary_size: int, token_map: Tensor | None) -> Head:
    check_draft_shapes(logits, inputs, token_map)
    check_counts([item.sampling for item in inputs], [item.token_counts for item in inputs])
    if len(inputs) > MAX_ROWS:
        raise ValueError(f"at most {MAX_ROWS} sessions, got {len(inputs)}")
    # The head holds the map, so no other one can come to have its id.
    return _remembered(("head", vocabulary_size, id(token_map)), lambda: head_of(vocabulary_size, token_map))  # type: ignore[return-value]


def _remembered(key: object, make: Callable[[], object]) -> object:
    known: dict[object, object] = _thread.__dict__.setdefault("known", {})
    if key not in known:
        known[key] = make()
    return known[key]


def _guesses(
    logits: Tensor,
    inputs: Sequence[DraftInput],
    chosen: Sequence[int],
    head: Head,
    tuning: tuple[Tuning, DraftTuning] | None,
) -> list[Guess]:
    """Of deterministic sessions: what a target with these logits would say at that position."""
    if not chosen:
        return []
    items = [head.by_column(inputs[b]) for b in chosen]
    steps = [VerifyInput(i.block_start + i.offset, [], [], i.sampling, i.rule, i.key, i.token_counts) for i in items]
    _, outcomes, _ = run(
        _chosen(logits, chosen), steps, head.columns, token_map=head.token_map, tuning=tuning and tuning[0]
    )
    tokens = head.ids_of(outcomes.next_token.clip(0, head.columns - 1))
    return list(zip(tokens.tolist(), outcomes.logprobs.tolist(), outcomes.finite.tolist(), strict=True))


def _rows(
    logits: Tensor,
    inputs: Sequence[DraftInput],
    chosen: Sequence[int],
    head: Head,
    tuning: tuple[Tuning, DraftTuning] | None,
) -> DrawnRows:
    """Rows of these sessions, whatever their rule, and the tokens drawn from them."""
    plan, numbers, form = _packed(
        logits.device, head, [head.by_column(inputs[b]) for b in chosen], tuning and tuning[1]
    )
    plan.send(numbers)
    plan.launch(_chosen(logits, chosen), form)
    return plan.fetch(form)


def _packed(
    device: torch.device, head: Head, items: Sequence[DraftInput], tuning: DraftTuning | None
) -> tuple[DraftPlan, NDArray[np.int32], DraftForm]:
    """A plan that holds so much, and the batch for it; the number of rows decides where its lists begin."""
    plans: dict[object, DraftPlan] = _thread.__dict__.setdefault("plans", {})
    key = (device, head.columns, id(head.token_map), tuning)
    plan = plans.get(key)
    have = plan.capacity if plan is not None else DraftCapacity(4, 128, 4096)
    rows = doubled(have.rows, len(items))
    numbers, form = pack_rows(items, head.columns, rows)
    need = DraftCapacity(rows, doubled(have.room, form.room), doubled(have.numbers, len(numbers)))
    if plan is None or need != have:
        plan = plans[key] = DraftPlan(device, head.columns, need, head.token_map, tuning)
    return plan, numbers, form


def _chosen(logits: Tensor, rows: Sequence[int]) -> Tensor:
    return logits if len(rows) == len(logits) else logits[list(rows)]

"""`verify` on the device: packs, launches, brings the outcomes back with one copy."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specmesh.kernels.compiled.forms import Tuning
from specmesh.kernels.compiled.pack import Packed, pack
from specmesh.kernels.compiled.plan import Capacity, Outcomes, VerifyPlan
from specmesh.kernels.inputs import VerifyInput, VerifyOutcome
from specmesh.kernels.packing import check_counts, check_shapes, pack_verify
from specmesh.kernels.reference.batch import VerifyResult
from specmesh.kernels.reference.logprobs import emitted_logprobs
from specmesh.kernels.reference.philox import key_tensor, noise_from_words, words_of_tokens
from specmesh.runtime.contract import Purpose
from specmesh.runtime.types import Rule, TokenLogprob

MAX_ROWS = 65_535
"""A launch has no more programs along its second axis."""
_plans = threading.local()


@torch.inference_mode()
def verify(
    logits: Tensor,
    inputs: Sequence[VerifyInput],
    *,
    vocabulary_size: int,
    num_top: Sequence[int | None] | None = None,
    tuning: Tuning | None = None,
) -> list[VerifyOutcome]:
    """As `specmesh.kernels.ops.verify`. Buffers are kept per thread, device and vocabulary, and grow by doubling."""
    if not inputs:
        return []
    asked = num_top or [None] * len(inputs)
    needs_rows = [_needs_rows(item, top) for item, top in zip(inputs, asked, strict=True)]
    packed, outcomes, rows = run(logits, inputs, vocabulary_size, needs_rows=needs_rows, tuning=tuning)
    logprobs = _logprobs(rows, inputs, vocabulary_size, packed, outcomes, asked)
    fields = zip(
        outcomes.num_accepted.tolist(), outcomes.next_token.tolist(), outcomes.finite.tolist(), logprobs, strict=True
    )
    return [VerifyOutcome(*field) for field in fields]


def run(
    logits: Tensor,
    inputs: Sequence[VerifyInput],
    vocabulary_size: int,
    *,
    token_map: Tensor | None = None,
    needs_rows: Sequence[bool] = (),
    tuning: Tuning | None = None,
) -> tuple[Packed, Outcomes, dict[int, Tensor]]:
    """A batch as it went to the device, what came back, and the logits of the sessions that `needs_rows`, in one copy.

    `token_map` as for `VerifyPlan.launch`.

    Raises ValueError as `check_shapes` and `check_counts` do, and for more than `MAX_ROWS` rows.
    """
    check_shapes(logits, inputs)
    check_counts([item.sampling for item in inputs], [item.token_counts for item in inputs])
    rows = logits.shape[0]
    if rows > MAX_ROWS:
        raise ValueError(f"at most {MAX_ROWS} rows of logits, got {rows}")
    plan = _plan(logits.device, vocabulary_size, Capacity(rows, len(inputs), 0), tuning)
    packed = pack(inputs, vocabulary_size, plan.capacity.rows)
    if len(packed.numbers) > plan.capacity.numbers:
        plan = _plan(logits.device, vocabulary_size, Capacity(rows, len(inputs), len(packed.numbers)), tuning)
    plan.send(packed)
    form = plan.form_of(packed)
    plan.launch(logits, form, token_map)
    lengths = {b: len(inputs[b].draft_token_ids) + 1 for b, needed in enumerate(needs_rows) if needed}
    spans = [logits[packed.row_starts[b] : packed.row_starts[b] + length] for b, length in lengths.items()]
    outcomes, brought = plan.fetch(form, torch.cat(spans) if spans else logits.new_empty((0, logits.shape[1])))
    return packed, outcomes, dict(zip(lengths, brought.split(list(lengths.values())), strict=True))


def _plan(device: torch.device, vocabulary_size: int, need: Capacity, tuning: Tuning | None) -> VerifyPlan:
    """A plan that holds so much; the number of rows decides where a packed batch's lists begin, so it grows first."""
    kept: dict[object, VerifyPlan] = _plans.__dict__.setdefault("kept", {})
    key = (device, vocabulary_size, tuning)
    plan = kept.get(key)
    if plan is None or not plan.capacity.holds(need):
        have = plan.capacity if plan is not None else Capacity(8, 4, 4096)
        grown = Capacity(
            doubled(have.rows, need.rows), doubled(have.sessions, need.sessions), doubled(have.numbers, need.numbers)
        )
        plan = kept[key] = VerifyPlan(device, vocabulary_size, grown, tuning)
    return plan


def doubled(have: int, need: int) -> int:
    """Doubled until it is enough."""
    while have < need:
        have *= 2
    return have


def _needs_rows(item: VerifyInput, top: int | None) -> bool:
    """Whether log-probabilities may have to come from the reference: the likeliest beside, or recovered tokens'."""
    sure = item.sampling.greedy or item.rule is Rule.COUPLED
    return top is not None and (top > 0 or bool(item.rows) or (bool(item.draft_token_ids) and not sure))


def _logprobs(
    host_rows: Mapping[int, Tensor],
    inputs: Sequence[VerifyInput],
    vocabulary_size: int,
    packed: Packed,
    outcomes: Outcomes,
    num_top: Sequence[int | None],
) -> list[tuple[TokenLogprob, ...]]:
    """Of the emitted tokens of the sessions that asked; the likeliest beside them come from the reference."""
    if all(top is None for top in num_top):
        return [()] * len(inputs)
    drawn = _drawn_logprobs(inputs, outcomes)
    answers: list[tuple[TokenLogprob, ...]] = []
    for b, (item, top) in enumerate(zip(inputs, num_top, strict=True)):
        start, accepted = int(packed.row_starts[b]), int(outcomes.num_accepted[b])
        if top is None or not outcomes.finite[b]:
            answers.append(())
        elif top > 0 or not np.isfinite(drawn[b]) or _is_of_draft_row(item, accepted, int(outcomes.next_token[b])):
            answers.append(_from_reference(host_rows[b], item, vocabulary_size, outcomes, b, top))
        else:
            values = outcomes.logprobs[start : start + accepted + 1].copy()
            if outcomes.draw_row[b] >= 0:
                values[accepted] = drawn[b]
            answers.append(tuple(TokenLogprob(value) for value in values.tolist()))
    return answers


def _is_of_draft_row(item: VerifyInput, accepted: int, token: int) -> bool:
    """Whether a recovered token is one of the rejected row's ids: its score is that of the residual, not of the law."""
    return bool(item.rows) and accepted < len(item.draft_token_ids) and token in item.rows[accepted][0]


def _drawn_logprobs(inputs: Sequence[VerifyInput], outcomes: Outcomes) -> NDArray[np.float32]:
    """ln T of the tokens that launch three drew: their score less their noise; 0 elsewhere; -inf: not known."""
    key = key_tensor([item.key for item in inputs])
    start = torch.tensor([item.block_start for item in inputs])
    accepted = torch.from_numpy(outcomes.num_accepted.astype(np.int64))
    kept_all = accepted == torch.tensor([len(item.draft_token_ids) for item in inputs])
    purpose = torch.where(kept_all, int(Purpose.BONUS), int(Purpose.RESIDUAL))
    words = words_of_tokens(key, start, accepted, purpose, torch.from_numpy(outcomes.next_token.astype(np.int64)))
    return np.where(outcomes.draw_row >= 0, outcomes.score - noise_from_words(words).numpy(), np.float32(0))


def _from_reference(
    rows: Tensor, item: VerifyInput, vocabulary_size: int, outcomes: Outcomes, b: int, top: int
) -> tuple[TokenLogprob, ...]:
    result = VerifyResult(
        torch.from_numpy(outcomes.num_accepted[b : b + 1].astype(np.int64)),
        torch.from_numpy(outcomes.next_token[b : b + 1].astype(np.int64)),
        torch.from_numpy(outcomes.finite[b : b + 1]),
    )
    return emitted_logprobs(pack_verify(rows, [item], vocabulary_size), result, [top])[0]

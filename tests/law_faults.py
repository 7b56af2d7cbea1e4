"""The classic ways to be wrong, as verifications that look right: what the gates must catch.

Each is built from the real parts with one of them replaced.
"""

from dataclasses import replace

import torch
from law_harness import Delivery
from torch import Tensor

from specmesh.kernels.reference.batch import VerifyBatch, VerifyResult
from specmesh.kernels.reference.choose import NoiseKey, noisy_largest
from specmesh.kernels.reference.decide import BlockProbs, Decision
from specmesh.kernels.reference.verify import (
    RejectionInputs,
    accept_uniforms,
    decide_by_rule,
    draw_next,
    rejection_inputs,
)
from specmesh.runtime.contract import Purpose


def _all_sessions(batch: VerifyBatch) -> Tensor:
    return torch.arange(len(batch.key))


def _parts(batch: VerifyBatch) -> tuple[Tensor, RejectionInputs, Tensor, Decision]:
    sessions = _all_sessions(batch)
    inputs = rejection_inputs(batch, sessions)
    uniforms = accept_uniforms(batch, sessions, inputs.probs)
    return sessions, inputs, uniforms, decide_by_rule(batch.block_rule, inputs.probs, uniforms)


def _result(decision: Decision, next_token: Tensor) -> VerifyResult:
    return VerifyResult(decision.num_accepted, next_token, torch.ones_like(next_token, dtype=torch.bool))


def _residual(inputs: RejectionInputs, decision: Decision) -> Tensor:
    """max(scale T - D, 0) of every session's next row, `[n, V]`; T where all were kept."""
    at = torch.arange(len(decision.num_accepted))
    probs, kept = inputs.probs, decision.num_accepted
    target = inputs.log_target[inputs.first_row + kept].exp()
    rejected = kept < probs.length
    row = torch.where(rejected, kept, 0)
    draft = torch.zeros_like(target)
    draft.scatter_add_(1, inputs.row_ids[at, row], probs.row_draft_probs[at, row])
    left = (decision.scale[:, None] * target - draft).clamp(min=0)
    return torch.where(rejected[:, None] & (left.sum(dim=1, keepdim=True) > 0), left, target)


def softmax_of_the_residual(batch: VerifyBatch) -> VerifyResult:
    """softmax(max(T - D, 0)) in place of the division by its sum."""
    sessions, inputs, _, decision = _parts(batch)
    rejected = decision.num_accepted < inputs.probs.length
    residual = _residual(inputs, decision)
    scores = torch.where(rejected[:, None], residual, residual.log())
    purpose = torch.full_like(sessions, int(Purpose.RESIDUAL))
    noise = NoiseKey(batch.key, batch.block_start, decision.num_accepted, purpose)
    return _result(decision, noisy_largest(scores, noise))


def one_uniform_twice(batch: VerifyBatch) -> VerifyResult:
    """The uniform that rejected a token also draws its replacement."""
    _, inputs, uniforms, decision = _parts(batch)
    rejected = decision.num_accepted < inputs.probs.length
    residual = _residual(inputs, decision)
    used = uniforms.gather(1, torch.where(rejected, decision.num_accepted, 0)[:, None])
    reached = residual.cumsum(dim=1) / residual.sum(dim=1, keepdim=True)
    drawn = (reached <= used).sum(dim=1).clamp(max=residual.shape[1] - 1)
    right = draw_next(batch, _all_sessions(batch), inputs, decision)
    return _result(decision, torch.where(rejected, drawn, right))


def full_ratio_with_truncated_residual(batch: VerifyBatch) -> VerifyResult:
    """The token came from the whole row and its ratio too; the residual knows only the row's largest entry."""
    sessions, inputs, _, decision = _parts(batch)
    weights = inputs.probs.row_draft_probs
    largest = torch.nn.functional.one_hot(weights.argmax(dim=-1), weights.shape[-1]).to(weights.dtype)
    probs = replace(inputs.probs, row_draft_probs=largest)
    return _result(decision, draw_next(batch, sessions, replace(inputs, probs=probs), decision))


def numbers_keyed_by_position(batch: VerifyBatch) -> VerifyResult:
    """No block start in the counter: a number that was conditioned on is met again in the next step."""
    sessions = _all_sessions(batch)
    inputs = rejection_inputs(batch, sessions)
    longest = inputs.probs.target_probs.shape[1]
    uniforms = torch.cat([_uniforms_at(batch, inputs.probs, offset) for offset in range(longest)], dim=1)
    decision = decide_by_rule(batch.block_rule, inputs.probs, uniforms)
    shifted = replace(batch, block_start=batch.block_start + decision.num_accepted)
    return _result(decision, draw_next(shifted, sessions, *_as_first_offset(inputs, decision)))


def _uniforms_at(batch: VerifyBatch, probs: BlockProbs, offset: int) -> Tensor:
    first = replace(probs, target_probs=probs.target_probs[:, :1])
    return accept_uniforms(replace(batch, block_start=batch.block_start + offset), _all_sessions(batch), first)


def _as_first_offset(inputs: RejectionInputs, decision: Decision) -> tuple[RejectionInputs, Decision]:
    """The same draw as if the row it is made from stood at offset 0."""
    at = torch.arange(len(decision.num_accepted))
    probs, kept = inputs.probs, decision.num_accepted
    row = torch.where(kept < probs.length, kept, 0)
    moved = replace(
        probs,
        length=(kept < probs.length).to(torch.int64),
        row_draft_probs=probs.row_draft_probs[at, row][:, None],
        row_is_entry=probs.row_is_entry[at, row][:, None],
    )
    shown = replace(inputs, first_row=inputs.first_row + kept, probs=moved, row_ids=inputs.row_ids[at, row][:, None])
    return shown, Decision(torch.zeros_like(kept), decision.scale)


def token_residual_under_block(batch: VerifyBatch) -> VerifyResult:
    """max(T - D, 0) where BLOCK needs max(P T - D, 0)."""
    sessions, inputs, _, decision = _parts(batch)
    unscaled = Decision(decision.num_accepted, torch.ones_like(decision.scale))
    return _result(decision, draw_next(batch, sessions, inputs, unscaled))


def bonus_from_the_row_before(batch: VerifyBatch) -> VerifyResult:
    """When all were kept the next token comes from the last draft's row."""
    sessions, inputs, _, decision = _parts(batch)
    all_kept = (decision.num_accepted == inputs.probs.length) & (inputs.probs.length > 0)
    earlier = replace(inputs, first_row=inputs.first_row - all_kept.to(torch.int64))
    return _result(decision, draw_next(batch, sessions, earlier, decision))


def late_blocks_dropped_whole(delivery: Delivery) -> Tensor:
    """A draft that stopped early was on time; a full block was late, and is thrown away."""
    return torch.where(delivery.lengths == delivery.wanted, 0, delivery.lengths)


def two_tokens_arrive(delivery: Delivery) -> Tensor:
    """No fault: the deadline passes when two tokens have come, and what has arrived is verified."""
    return delivery.lengths.clamp(max=2)


def late_blocks_cut_afterwards(delivery: Delivery) -> Tensor:
    """Cutting only the blocks that turned out late looks at tokens which are then thrown away."""
    return torch.where(delivery.lengths == delivery.wanted, delivery.lengths.clamp(max=2), delivery.lengths)


def blocks_with_token_0_refused(delivery: Delivery) -> Tensor:
    """A block is thrown away for a value that was sampled."""
    inside = torch.arange(delivery.token_ids.shape[1]) < delivery.lengths[:, None]
    return torch.where(((delivery.token_ids == 0) & inside).any(dim=1), 0, delivery.lengths)

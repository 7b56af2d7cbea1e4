"""`verify`: raw target logits and drafted blocks to accepted counts and next tokens (specification 1.3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specmesh.kernels.reference.batch import VerifyBatch, VerifyResult, spread
from specmesh.kernels.reference.choose import NoiseKey, first_largest, noisy_largest
from specmesh.kernels.reference.decide import BlockProbs, Decision, decide_block, decide_token, residual_scores
from specmesh.kernels.reference.law import adjusted_scores, log_law, non_finite
from specmesh.kernels.reference.philox import philox, uniform_from_words
from specmesh.runtime.contract import ROW_TOTAL, Purpose


def verify_batch(batch: VerifyBatch) -> VerifyResult:
    """Outcome of every session. Nothing in a session's outcome depends on another session, bit for bit."""
    greedy = batch.law.greedy
    coupled = batch.coupled & ~greedy
    groups = ((greedy, verify_greedy), (coupled, verify_coupled), (~greedy & ~coupled, verify_by_rejection))
    result = VerifyResult(
        num_accepted=torch.zeros_like(batch.block_start),
        next_token=torch.zeros_like(batch.block_start),
        finite=torch.ones_like(batch.coupled),
    )
    for group, verify in groups:
        sessions = group.nonzero()[:, 0]
        if len(sessions) == len(group):
            return verify(batch, sessions)
        if len(sessions):
            part = verify(batch, sessions)
            result.num_accepted[sessions] = part.num_accepted
            result.next_token[sessions] = part.next_token
            result.finite[sessions] = part.finite
    return result


def row_scores(batch: VerifyBatch, sessions: Tensor, offsets: Tensor) -> Tensor:
    """Adjusted scores float32 `[n, V]` of chosen rows: row i is that at `offsets[i]` of session `sessions[i]`."""
    rows = batch.row_starts[sessions] + offsets
    logits = batch.logits[:, : batch.vocabulary_size]
    logits = logits if len(rows) == len(logits) else logits[rows]
    return adjusted_scores(logits, batch.law, sessions, _prefix(batch, sessions, offsets))


def _prefix(batch: VerifyBatch, sessions: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor] | None:
    """Draft tokens before each row, for rows of sessions with penalties: (row, id)."""
    law = batch.law
    penalised = (law.repetition_penalty != 1) | (law.presence_penalty != 0) | (law.frequency_penalty != 0)
    if not penalised.any():
        return None
    row, within = spread(torch.where(penalised[sessions], offsets, 0))
    return row, batch.draft_token_ids[batch.draft_index(sessions[row], within)]


def verify_greedy(batch: VerifyBatch, sessions: Tensor) -> VerifyResult:
    """Temperature 0: the longest prefix that equals the target's arg-max, and the arg-max after it."""
    lengths = batch.lengths[sessions]
    item, offset = spread(lengths + 1)
    scores = row_scores(batch, sessions[item], offset)
    token = first_largest(scores)
    # The arg-max of a row with a NaN is that NaN, so one look says whether a row is finite.
    finite = scores.gather(1, token[:, None])[:, 0].isfinite()
    drafted = offset < lengths[item]
    right = drafted & finite
    some = right.nonzero()[:, 0]
    right[some] = batch.draft_token_ids[batch.draft_index(sessions[item[some]], offset[some])] == token[some]
    ends = lengths.scatter_reduce(0, item, torch.where(right, lengths[item], offset), reduce="amin")
    last = (lengths + 1).cumsum(0) - lengths - 1 + ends
    return VerifyResult(ends, token[last], finite[last])


def verify_coupled(batch: VerifyBatch, sessions: Tensor) -> VerifyResult:
    """COUPLED: the target draws each token with the shared noise, and goes on while the draft guessed it.

    Rows after the first wrong guess are never looked at: what a draft says can end the step and nothing else.
    """
    num_accepted = torch.zeros_like(sessions)
    next_token = torch.zeros_like(sessions)
    finite = torch.ones_like(sessions, dtype=torch.bool)
    active = torch.arange(len(sessions), device=sessions.device)
    for offset in range(int(batch.lengths[sessions].max()) + 1):
        here = sessions[active]
        offsets = torch.full_like(here, offset)
        scores = row_scores(batch, here, offsets)
        zero = torch.zeros_like(here)
        noise = NoiseKey(batch.key[here], batch.block_start[here] + offset, zero, zero + int(Purpose.COUPLED))
        token = noisy_largest(log_law(scores, batch.law, here), noise)
        num_accepted[active], next_token[active] = offset, token
        finite[active] = ~non_finite(scores)
        inside = ((batch.lengths[here] > offset) & finite[active]).nonzero()[:, 0]
        drafted = batch.draft_token_ids[batch.draft_index(here[inside], offsets[inside])]
        active = active[inside[drafted == token[inside]]]
        if len(active) == 0:
            break
    return VerifyResult(num_accepted, next_token, finite)


@dataclass(frozen=True, slots=True)
class RejectionInputs:
    """All that TOKEN and BLOCK need of some sessions.

    `log_target` `[N, V]`: ln T of all their rows in order, those of the i-th chosen session from `first_row[i]`;
    `probs`: see `BlockProbs`; `row_ids` `[n, L, K]` beside them; `first_bad` `[n]`: offset of the first row that is not
    finite (length + 1 when all are).
    """

    log_target: Tensor
    first_row: Tensor
    probs: BlockProbs
    row_ids: Tensor
    first_bad: Tensor


def verify_by_rejection(batch: VerifyBatch, sessions: Tensor) -> VerifyResult:
    """BLOCK and TOKEN."""
    inputs = rejection_inputs(batch, sessions)
    decision = decide_by_rule(batch.block_rule[sessions], inputs.probs, accept_uniforms(batch, sessions, inputs.probs))
    next_token = draw_next(batch, sessions, inputs, decision)
    return VerifyResult(decision.num_accepted, next_token, decision.num_accepted != inputs.first_bad)


def decide_by_rule(block_rule: Tensor, probs: BlockProbs, uniforms: Tensor) -> Decision:
    """Each session by its own rule, `block_rule` `[n]` bool."""
    if probs.target_probs.shape[1] == 0 or not block_rule.any():
        return decide_token(probs, uniforms)
    if block_rule.all():
        return decide_block(probs, uniforms)
    block, token = decide_block(probs, uniforms), decide_token(probs, uniforms)
    return Decision(
        torch.where(block_rule, block.num_accepted, token.num_accepted),
        torch.where(block_rule, block.scale, token.scale),
    )


def rejection_inputs(batch: VerifyBatch, sessions: Tensor) -> RejectionInputs:
    """Target and draft probabilities where a decision needs them.

    A block is cut before the row that is not finite: the tokens up to it stand, and only a session that gets there
    fails. That row depends on tokens which are all kept, so the cut is a stop after a kept token and moves no law.
    """
    lengths = batch.lengths[sessions]
    item, offset = spread(lengths + 1)
    scores = row_scores(batch, sessions[item], offset)
    bad = non_finite(scores)
    first_row = (lengths + 1).cumsum(0) - lengths - 1
    first_bad = lengths + 1
    first_bad.scatter_reduce_(0, item[bad], offset[bad], reduce="amin")
    log_target = log_law(scores, batch.law, sessions[item])
    probs, row_ids = _block_probs(batch, sessions, log_target, first_row, torch.minimum(lengths, first_bad))
    return RejectionInputs(log_target, first_row, probs, row_ids, first_bad)


def _block_probs(
    batch: VerifyBatch, sessions: Tensor, log_target: Tensor, first_row: Tensor, length: Tensor
) -> tuple[BlockProbs, Tensor]:
    """Gathers T and D into `[n, L]` and `[n, L, K]`."""
    item, offset = spread(batch.lengths[sessions])
    draft = batch.draft_index(sessions[item], offset)
    token = batch.draft_token_ids[draft]
    sizes = batch.draft_rows.offsets[draft + 1] - batch.draft_rows.offsets[draft]
    shape = (len(sessions), int(length.max()), max(int(sizes.max()), 1) if len(sizes) else 1)
    row_ids, weights = (log_target.new_zeros(shape, dtype=torch.int64) for _ in range(2))
    inside = offset < length[item]
    item, offset, draft, token, sizes = (x[inside] for x in (item, offset, draft, token, sizes))
    place, ids, values = batch.draft_rows.entries(draft)
    within = spread(sizes)[1]
    row_ids[item[place], offset[place], within] = ids
    weights[item[place], offset[place], within] = values
    one_hot = sizes == 0
    row_ids[item[one_hot], offset[one_hot], 0] = token[one_hot]
    weights[item[one_hot], offset[one_hot], 0] = ROW_TOTAL
    tokens = row_ids.new_zeros(shape[:2])
    tokens[item, offset] = token
    places = torch.arange(shape[1], device=tokens.device)
    row = first_row[:, None] + torch.where(places < length[:, None], places, 0)
    is_entry = weights > 0
    row_target = torch.where(is_entry, log_target[row[..., None], row_ids].exp(), 0.0)
    row_draft = weights.to(torch.float32) / ROW_TOTAL
    own = row_draft.masked_fill(row_ids != tokens[..., None], 0).sum(dim=-1)
    target = log_target[row, tokens].exp()
    return BlockProbs(length, target, own, row_target, row_draft, is_entry), row_ids


def accept_uniforms(batch: VerifyBatch, sessions: Tensor, probs: BlockProbs) -> Tensor:
    """u `[n, L]`, keyed by the block start and the offset."""
    offsets = torch.arange(probs.target_probs.shape[1], device=sessions.device)
    counter = (batch.block_start[sessions][:, None], offsets[None], int(Purpose.ACCEPT), 0)
    words = philox(batch.key[sessions][:, None], counter)[0]
    return uniform_from_words(words.expand(len(sessions), len(offsets)))


def draw_next(batch: VerifyBatch, sessions: Tensor, inputs: RejectionInputs, decision: Decision) -> Tensor:
    """The recovered or the bonus token, `[n]`: one row per session, one arg-max under noise."""
    num_accepted, probs = decision.num_accepted, inputs.probs
    rejected = num_accepted < probs.length
    log_target = inputs.log_target[inputs.first_row + num_accepted]
    some = rejected.nonzero()[:, 0]
    if len(some):
        at = num_accepted[some]
        session, entry = probs.row_is_entry[some, at].nonzero(as_tuple=True)
        place = (some[session], at[session], entry)
        row = (session, inputs.row_ids[place], probs.row_draft_probs[place])
        log_target[some] = residual_scores(log_target[some], decision.scale[some], row)
    purpose = torch.where(rejected, int(Purpose.RESIDUAL), int(Purpose.BONUS))
    noise = NoiseKey(batch.key[sessions], batch.block_start[sessions], num_accepted, purpose)
    return noisy_largest(log_target, noise)

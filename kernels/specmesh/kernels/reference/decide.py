"""The verification rules as arithmetic on a few numbers per drafted token; uniforms and noise are arguments.

TOKEN: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318). BLOCK: arXiv 2403.10444, Algorithm 2.
T = `target_probs`, D = `draft_probs` throughout.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockProbs:
    """What the rules look at, `[n, L]` per drafted token and `[n, L, K]` per entry of its sparse row.

    `length` `[n]` says how many tokens count. Sessions shorter than L and rows shorter than K are padded at the end;
    padding of a row has both probabilities 0 and `row_is_entry` False.
    """

    length: Tensor
    target_probs: Tensor
    draft_probs: Tensor
    row_target_probs: Tensor
    row_draft_probs: Tensor
    row_is_entry: Tensor


@dataclass(frozen=True, slots=True)
class Decision:
    """`num_accepted`, `scale` `[n]`: the next token is drawn from max(scale * T - D, 0), from T when all were kept."""

    num_accepted: Tensor
    scale: Tensor


def decide_token(probs: BlockProbs, uniforms: Tensor) -> Decision:
    """Token by token: accept while u < T / D (strict). `uniforms` `[n, L]`, one per drafted token."""
    accepted = (uniforms < _ratio(probs)) & _counts(probs)
    num_accepted = accepted.to(torch.int64).cumprod(dim=1).sum(dim=1)
    return Decision(num_accepted, torch.ones_like(probs.length, dtype=torch.float32))


def decide_block(probs: BlockProbs, uniforms: Tensor) -> Decision:
    """The whole block at once: the last i with u_i < h_i, and no early break.

    P_i = min(1, P_{i-1} T(x_i) / D(x_i)); S_i the residual mass of P_i T - D in the row after i tokens;
    h_i = S_i / (S_i + 1 - P_i), and h_L = P_L at the received length L.
    """
    ratio = _ratio(probs)
    reach = torch.ones_like(probs.length, dtype=torch.float32)
    num_accepted = torch.zeros_like(probs.length)
    scale = reach
    for i in range(1, uniforms.shape[1] + 1):
        reach = torch.minimum(reach * ratio[:, i - 1], torch.ones_like(reach))
        accept = reach
        if i < uniforms.shape[1]:
            accept = torch.where(probs.length == i, reach, _block_accept(probs, i, reach))
        kept = (uniforms[:, i - 1] < accept) & (i <= probs.length)
        num_accepted = torch.where(kept, i, num_accepted)
        scale = torch.where(kept, reach, scale)
    return Decision(num_accepted, scale)


def _ratio(probs: BlockProbs) -> Tensor:
    """T / D of the drafted tokens; 0 in the padding, and for a token outside its own row, which no check lets pass."""
    inside = _counts(probs) & (probs.draft_probs > 0)
    return torch.where(inside, probs.target_probs / probs.draft_probs, 0.0)


def _counts(probs: BlockProbs) -> Tensor:
    places = torch.arange(probs.target_probs.shape[1], device=probs.length.device)
    return places < probs.length[:, None]


def _block_accept(probs: BlockProbs, i: int, reach: Tensor) -> Tensor:
    """h_i for 0 < i < L; 1 where it is 0 / 0."""
    target, draft = probs.row_target_probs[:, i], probs.row_draft_probs[:, i]
    inside = (reach[:, None] * target - draft).clamp(min=0).sum(dim=1)
    residual = (reach * (1 - target.sum(dim=1)) + inside).clamp(min=0)
    whole = residual + 1 - reach
    return torch.where(whole == 0, 1.0, residual / whole)


def residual_scores(log_target: Tensor, scale: Tensor, row: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """ln max(scale * T - D, 0) `[n, V]`, or ln T where that is empty by rounding.

    `log_target` `[n, V]` is ln T; `row` = (session, column, D) of the sparse row's entries, `[m]` each.
    Dividing by the residual's sum is left out: a constant does not move an arg-max.
    """
    session, column, draft_probs = row
    scores = log_target + scale.log()[:, None]
    left = scale[session] * log_target[session, column].exp() - draft_probs
    scores[session, column] = left.clamp(min=0).log()
    empty = scores.amax(dim=-1) == -torch.inf
    return torch.where(empty[:, None], log_target, scores)

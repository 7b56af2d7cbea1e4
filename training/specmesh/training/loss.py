"""How far a draft's law is from the target's."""

from typing import NamedTuple

import torch
from torch import Tensor


class Distance(NamedTuple):
    """Both [...] float32, per position. Overlap, the sum of min(T, D): the chance that TOKEN accepts a token."""

    kl: Tensor  # sum over the draft's vocabulary of T (ln T - ln D), nats
    overlap: Tensor


def distance(target_logits: Tensor, draft_logits: Tensor, token_ids: Tensor) -> Distance:
    """target_logits: [..., V]. draft_logits: [..., W], over token_ids [W]. What a draft cannot say is lost overlap."""
    normaliser = torch.logsumexp(target_logits.float(), dim=-1, keepdim=True)
    target_log = target_logits[..., token_ids].float() - normaliser
    draft_log = draft_logits.float().log_softmax(-1)
    target_probs = target_log.exp()
    kl = (target_probs * (target_log - draft_log)).sum(-1)
    overlap = torch.minimum(target_probs, draft_log.exp()).sum(-1)
    return Distance(kl, overlap)


def training_loss(measured: Distance, weights: Tensor, share_of_variation: float) -> Tensor:
    """A scalar: KL at `share_of_variation` 0, total variation (1 - overlap) at 1. weights: one per position."""
    per_position = (1 - share_of_variation) * measured.kl + share_of_variation * 4 * (1 - measured.overlap)
    return (per_position * weights).sum() / weights.sum()

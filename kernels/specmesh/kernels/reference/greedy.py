"""Temperature 0 with nothing to adjust, the commonest batch: outcomes without the tensors of `VerifyBatch`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specmesh.kernels.inputs import VerifyInput, VerifyOutcome
from specmesh.kernels.reference.choose import first_largest


def is_plain_greedy(inputs: Sequence[VerifyInput]) -> bool:
    """Whether every session takes the arg-max of its raw logits."""
    return all(
        item.sampling.greedy and not item.sampling.has_penalties and not item.sampling.logit_bias for item in inputs
    )


def verify_greedy(logits: Tensor, inputs: Sequence[VerifyInput], vocabulary_size: int) -> list[VerifyOutcome]:
    """What `verify_batch` gives for these sessions: the longest prefix that equals the arg-max, then the next one.

    `logits` `[R, W]`, one row per drafted token and one more, sessions in order.
    """
    scores = logits[:, :vocabulary_size].to(torch.float32)
    best = first_largest(scores)
    finite = scores.gather(1, best[:, None])[:, 0].isfinite().tolist()
    tokens = best.tolist()
    outcomes = []
    row = 0
    for item in inputs:
        end = row + len(item.draft_token_ids)
        at = row
        while at < end and finite[at] and item.draft_token_ids[at - row] == tokens[at]:
            at += 1
        outcomes.append(VerifyOutcome(at - row, tokens[at], finite[at]))
        row = end + 1
    return outcomes

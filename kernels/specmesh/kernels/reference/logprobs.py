"""Log-probabilities of emitted tokens, and of the likeliest beside them, for the sessions that asked."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specmesh.kernels.reference.batch import VerifyBatch, VerifyResult
from specmesh.kernels.reference.law import log_law
from specmesh.kernels.reference.verify import row_scores
from specmesh.runtime.types import TokenLogprob


def emitted_logprobs(
    batch: VerifyBatch, result: VerifyResult, num_top: Sequence[int | None]
) -> list[tuple[TokenLogprob, ...]]:
    """Of every session those of its emitted tokens; `num_top[b]`: None = none, n = with the n likeliest beside each."""
    answers: list[tuple[TokenLogprob, ...]] = [()] * len(num_top)
    for b, top in enumerate(num_top):
        if top is None or not result.finite[b]:
            continue
        offsets = torch.arange(int(result.num_accepted[b]) + 1)
        sessions = torch.full_like(offsets, b)
        drafted = batch.draft_token_ids[batch.draft_index(sessions[:-1], offsets[:-1])]
        tokens = torch.cat((drafted, result.next_token[b : b + 1]))
        law = log_law(row_scores(batch, sessions, offsets), batch.law, sessions)
        answers[b] = tuple(_token_logprobs(law, tokens, top))
    return answers


def _token_logprobs(law: Tensor, tokens: Tensor, num_top: int) -> list[TokenLogprob]:
    own = law.gather(1, tokens[:, None])[:, 0].tolist()
    values, ids = law.topk(min(num_top, law.shape[1]), dim=1)
    tops = [
        tuple((token, value) for token, value in zip(*pair, strict=True) if value > -torch.inf)
        for pair in zip(ids.tolist(), values.tolist(), strict=True)
    ]
    return [TokenLogprob(value, top) for value, top in zip(own, tops, strict=True)]

"""The target law (specification 1.1): raw logits to log-probabilities, row by row.

Order: ids beyond the vocabulary cut off; bias; repetition, presence and frequency penalties; temperature; top-k; top-p;
min-p; renormalise. A row's result depends on that row alone, bit for bit: every reduction here runs along one row.
"""

import torch
from torch import Tensor

from specmesh.kernels.reference.batch import LawParams
from specmesh.kernels.reference.truncation import keep_largest

COLDEST = 1e-30
"""Temperatures under this act as this: the gap between two different float32 scores is already 1e20 nats then."""


def columns_of(token_ids: Tensor, token_map: Tensor) -> tuple[Tensor, Tensor]:
    """Columns `[m]` of these ids in a head over a subset of the vocabulary, and which of them it has at all."""
    columns = torch.searchsorted(token_map, token_ids).clamp_(max=len(token_map) - 1)
    return columns, token_map[columns] == token_ids


def adjusted_scores(
    logits: Tensor,
    law: LawParams,
    sessions: Tensor,
    prefix: tuple[Tensor, Tensor] | None = None,
    token_map: Tensor | None = None,
) -> Tensor:
    """Logits after bias and penalties: float32 `[n, V]`; row i belongs to session `sessions[i]`.

    `prefix` = (rows, ids), each `[m]`: draft tokens that row i is processed with as if they had been emitted. May
    return a view of `logits` when there is nothing to do.
    """
    scores = logits.to(torch.float32)
    if len(law.bias.ids) == 0 and len(law.counts.ids) == 0 and prefix is None:
        return scores
    scores = scores.clone() if scores is logits else scores
    rows, ids, values = _inside(*law.bias.entries(sessions), scores.shape[1], token_map)
    scores.index_put_((rows, ids), values, accumulate=True)
    rows, ids, values = law.counts.entries(sessions)
    if prefix is not None:
        rows, ids = torch.cat((rows, prefix[0])), torch.cat((ids, prefix[1]))
        values = torch.cat((values, torch.ones_like(prefix[1])))
    _penalise(scores, law, sessions, *_inside(rows, ids, values, scores.shape[1], token_map))
    return scores


def _inside(
    rows: Tensor, ids: Tensor, values: Tensor, size: int, token_map: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Entries as columns; an id that a head cannot say needs no adjusting."""
    columns, known = (ids, ids < size) if token_map is None else columns_of(ids, token_map)
    return rows[known], columns[known], values[known]


def _penalise(scores: Tensor, law: LawParams, sessions: Tensor, rows: Tensor, ids: Tensor, counts: Tensor) -> None:
    """In place: negative scores times, positive by the repetition penalty (as transformers); then the other two."""
    total = torch.zeros_like(scores)
    total.index_put_((rows, ids), counts.to(torch.float32), accumulate=True)
    seen = total[rows, ids]
    session = sessions[rows]
    old = scores[rows, ids]
    repetition = law.repetition_penalty[session]
    new = torch.where(old < 0, old * repetition, old / repetition)
    new = new - law.presence_penalty[session] - law.frequency_penalty[session] * seen
    scores[rows, ids] = torch.where(seen > 0, new, old)


def non_finite(scores: Tensor) -> Tensor:
    """`[n]` bool: rows with a NaN or +inf, or with nothing but -inf. A single -inf is a masked token, and legal."""
    return ~scores.amax(dim=-1).isfinite()


def cooled_scores(scores: Tensor, temperature: Tensor) -> Tensor:
    """Scores `[n, V]` at their temperatures `[n]`, less each row's maximum: ln of the untruncated law less a constant.

    The maximum is subtracted before the division, so that no temperature can overflow.
    """
    return (scores - scores.amax(dim=-1, keepdim=True)).div_(temperature[:, None])


def log_law(scores: Tensor, law: LawParams, sessions: Tensor) -> Tensor:
    """ln of the law, float32 `[n, V]`, -inf outside it; rows that are `non_finite` come out as rubbish of their own.

    At temperature 0 the law is a point mass, whose logarithm would tell nothing: such rows get that of temperature 1
    without truncation, for people to read.
    """
    greedy = law.greedy[sessions]
    temperature = torch.where(greedy, 1.0, law.temperature[sessions].clamp(min=COLDEST))
    cooled = cooled_scores(scores, temperature)
    top_k, top_p, min_p = law.top_k[sessions], law.top_p[sessions], law.min_p[sessions]
    top_k = torch.where(top_k <= 0, cooled.shape[1], top_k)
    cut = ~greedy & ((top_k < cooled.shape[1]) | (top_p < 1) | (min_p > 0))
    if cut.any():
        rows = (cut & ~non_finite(cooled)).nonzero()[:, 0]
        if len(rows):
            cooled[rows] = _truncated(cooled[rows], top_k[rows], top_p[rows], min_p[rows])
    return torch.log_softmax(cooled, dim=-1)


def _truncated(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Scores with -inf outside top-k, then top-p of what is left, then min-p. Row maxima are 0."""
    keep = keep_largest(scores, top_k, top_p)
    keep &= scores >= min_p.log()[:, None]
    return scores.masked_fill_(~keep, -torch.inf)

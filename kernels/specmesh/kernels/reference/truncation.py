"""The fewest largest tokens whose mass reaches a share: top-k and top-p are this.

Of equal scores the lower id stays. What is kept of a row depends on that row alone, bit for bit.
"""

import numpy as np
import torch
from torch import Tensor

LONG_ROW = 1024
"""Rows longer than this go one by one, where only tokens that can be kept are sorted; shorter ones all at once."""


def keep_largest(scores: Tensor, limit: Tensor, mass: Tensor) -> Tensor:
    """Mask `[n, V]`: of the `limit` largest of each row the fewest whose mass reaches `mass` of theirs; one or more.

    `scores` float32 `[n, V]` are logarithms up to a constant, finite at their maximum; `limit` `[n]` >= 1; `mass` `[n]`
    in (0, 1], 1 keeps all of the limited.
    """
    if scores.shape[1] <= LONG_ROW:
        return _keep_dense(scores, limit, mass)
    pairs = zip(limit.tolist(), mass.tolist(), strict=True)
    rows = [_keep_row(scores[i], *pair) for i, pair in enumerate(pairs)]
    return torch.stack(rows) if rows else torch.ones_like(scores, dtype=torch.bool)


def _keep_dense(scores: Tensor, limit: Tensor, mass: Tensor) -> Tensor:
    size = scores.shape[1]
    limit = limit.clamp(max=size)
    ordered = scores.sort(dim=1, descending=True).values
    total = (ordered - ordered[:, :1]).exp().cumsum(dim=1)
    whole = total.gather(1, (limit - 1)[:, None])
    # A member stays while those before it do not reach the mass.
    reaching = 1 + (total < mass[:, None] * whole).sum(dim=1)
    number = torch.minimum(limit, torch.where(mass < 1, reaching, size))
    edge = ordered.gather(1, (number - 1)[:, None])
    return _lower_ids_first(scores, edge, number)


def _lower_ids_first(scores: Tensor, edge: Tensor, number: Tensor) -> Tensor:
    """All above the edge and, of those on it, as many of the lower ids as there is room for."""
    above, equal = scores > edge, scores == edge
    room = number - above.sum(dim=1)
    return above | (equal & (equal.cumsum(dim=1) <= room[:, None]))


def _keep_row(scores: Tensor, limit: int, mass: float) -> Tensor:
    """The same for one long row `[V]`."""
    if limit >= len(scores) and mass >= 1:
        return torch.ones_like(scores, dtype=torch.bool)
    ordered, whole = _top(scores, limit, mass)
    number = len(ordered)
    if mass < 1:
        reached = (ordered - ordered[0]).exp().cumsum(dim=0)
        whole = reached[-1] if whole is None else whole
        number = min(number, 1 + int((reached < mass * whole).sum()))
    edge = ordered[number - 1]
    keep = scores >= edge
    if int(keep.sum()) == number:
        return keep
    return _lower_ids_first(scores[None], edge[None, None], torch.tensor([number], device=scores.device))[0]


def _top(scores: Tensor, limit: int, mass: float) -> tuple[Tensor, Tensor | None]:
    """(largest scores in order, as many as can be kept; mass of the whole row in units of the largest, if needed)."""
    if limit < len(scores):
        return scores.topk(limit).values, None
    most = scores.max()
    whole = (scores - most).exp().sum()
    # All tokens under this together weigh less than what may be left out.
    able = scores[scores >= most + (whole * ((1 - mass) / len(scores))).log()]
    # NumPy's sort is many times faster here.
    return torch.from_numpy(-np.sort(-able.cpu().numpy())).to(scores.device), whole

"""`draft_step`: raw draft logits to a token and the row it was sampled from (specification 1.2).

The row is made first and the token is drawn from its integers, so the row is the draft's true distribution.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specmesh.kernels.reference.batch import DraftBatch, DraftResult, DraftRows
from specmesh.kernels.reference.choose import NoiseKey, first_largest, noisy_largest
from specmesh.kernels.reference.law import adjusted_scores, cooled_scores, log_law, non_finite
from specmesh.kernels.reference.philox import key_integers, philox
from specmesh.kernels.reference.rows import MAX_ROW, Cuts, rows_of
from specmesh.runtime.contract import ROW_TOTAL, ROW_TOTAL_BITS, Purpose
from specmesh.runtime.philox import draft_draw as scalar_draw

FEW_DRAWS = 16
"""Up to so many draws are quicker one by one, in integers of Python: 15 microseconds each, against 250 for an array."""


def draft_batch(batch: DraftBatch) -> DraftResult:
    """One drafted token per session. Temperature 0 and COUPLED are deterministic and have no row.

    `logprob` is ln of the token's weight in its row; of a deterministic token, ln of its probability under the draft's
    own law (at temperature 0: that of temperature 1), for people and policies.
    """
    scores, finite = draft_scores(batch)
    token_ids = torch.zeros_like(batch.key)
    logprob = torch.zeros_like(batch.row_mass)
    deterministic = batch.law.greedy | batch.coupled
    sure = deterministic.nonzero()[:, 0]
    if len(sure):
        log_draft = log_law(scores[sure], batch.law, sure)
        column = guesses(batch, log_draft, sure)
        logprob[sure] = log_draft.gather(1, column[:, None])[:, 0]
        token_ids[sure] = column if batch.token_map is None else batch.token_map[column]
    some = (~deterministic).nonzero()[:, 0]
    if len(some) == 0:
        return DraftResult(token_ids, logprob, finite, ~deterministic, None)
    rows = draft_rows(batch, scores, some)
    draw = draft_draw(batch.key[some], batch.block_start[some], batch.offset[some])
    token_ids[some], weight = sample_rows(rows, draw)
    logprob[some] = (weight.to(torch.float32) / ROW_TOTAL).log()
    return DraftResult(token_ids, logprob, finite, ~deterministic, rows)


def draft_scores(batch: DraftBatch) -> tuple[Tensor, Tensor]:
    """Adjusted scores `[B, V]` by column, and which sessions are finite.

    A session that is not finite gets the uniform law, to keep its numbers harmless; its token must not be used.
    """
    sessions = torch.arange(len(batch.logits), device=batch.logits.device)
    columns = batch.vocabulary_size
    if batch.token_map is not None:
        columns = int(torch.searchsorted(batch.token_map, batch.vocabulary_size))
    token_map = None if batch.token_map is None else batch.token_map[:columns]
    scores = adjusted_scores(batch.logits[:, :columns], batch.law, sessions, token_map=token_map)
    bad = non_finite(scores)
    if bad.any():
        scores = scores.masked_fill(bad[:, None], 0.0)
    return scores, ~bad


def guesses(batch: DraftBatch, log_draft: Tensor, sessions: Tensor) -> Tensor:
    """Columns `[n]` of what these deterministic sessions propose, `log_draft` `[n, V]`: the arg-max, under COUPLED with
    the shared noise.
    """
    columns = torch.empty_like(sessions)
    greedy = batch.law.greedy[sessions]
    columns[greedy] = first_largest(log_draft[greedy])
    coupled = sessions[~greedy]
    if len(coupled):
        zero = torch.zeros_like(coupled)
        position = batch.block_start[coupled] + batch.offset[coupled]
        noise = NoiseKey(batch.key[coupled], position, zero, zero + int(Purpose.COUPLED))
        token_map = None if batch.token_map is None else batch.token_map[: log_draft.shape[1]]
        columns[~greedy] = noisy_largest(log_draft[~greedy], noise, token_map)
    return columns


def draft_rows(batch: DraftBatch, scores: Tensor, sessions: Tensor) -> DraftRows:
    """Rows of these sessions, whatever their rule; not at temperature 0."""
    law = batch.law
    cuts = Cuts(
        top_k=law.top_k[sessions].numpy(),
        top_p=law.top_p[sessions].numpy(),
        log_min_p=log_min_p(law.min_p[sessions].numpy()),
        row_mass=batch.row_mass[sessions].numpy(),
        max_row=batch.max_row[sessions].clamp(min=1, max=MAX_ROW).numpy(),
    )
    return _as_rows(cooled_scores(scores[sessions], law.temperature[sessions]), cuts, batch.token_map)


def log_min_p(min_p: NDArray[np.float32]) -> NDArray[np.float32]:
    """ln of min-p, float32; -inf where it is off."""
    with np.errstate(divide="ignore"):
        return np.log(min_p)


def make_rows(log_probs: Tensor, row_mass: Tensor, max_row: Tensor, token_map: Tensor | None = None) -> DraftRows:
    """Rows of laws ln D `[n, V]` by column: the fewest columns whose mass reaches `row_mass`, at most `max_row`."""
    count = len(log_probs)
    cuts = Cuts(
        top_k=np.zeros(count, dtype=np.int64),
        top_p=np.ones(count, dtype=np.float32),
        log_min_p=np.full(count, -np.inf, dtype=np.float32),
        row_mass=row_mass.numpy(),
        max_row=max_row.clamp(min=1, max=MAX_ROW).numpy(),
    )
    return _as_rows(cooled_scores(log_probs, torch.ones(count)), cuts, token_map)


def _as_rows(cooled: Tensor, cuts: Cuts, token_map: Tensor | None) -> DraftRows:
    columns, weights = (torch.from_numpy(part) for part in rows_of(cooled.numpy(), cuts))
    return DraftRows(columns if token_map is None else torch.where(weights > 0, token_map[columns], 0), weights)


def draft_draw(key: Tensor, block_start: Tensor, offset: Tensor) -> Tensor:
    """r in [0, 2^24), `[n]`: the top bits of one word at (block start, offset, draft, 0)."""
    if key.device.type == "cpu" and len(key) <= FEW_DRAWS:
        counters = zip(key_integers(key), block_start.tolist(), offset.tolist(), strict=True)
        return torch.tensor([scalar_draw(*counter) for counter in counters])
    return philox(key, (block_start, offset, int(Purpose.DRAFT), 0))[0] >> (32 - ROW_TOTAL_BITS)


def sample_rows(rows: DraftRows, draw: Tensor) -> tuple[Tensor, Tensor]:
    """(token ids, their weights), `[n]`: the first id whose cumulative weight exceeds the draw."""
    at = (rows.weights.cumsum(dim=1) <= draw[:, None]).sum(dim=1, keepdim=True)
    return rows.ids.gather(1, at)[:, 0], rows.weights.gather(1, at)[:, 0]


def weight_of(rows: DraftRows, token_ids: Tensor) -> Tensor:
    """Weight `[n]` of a token in its row, 0 outside."""
    return torch.where(rows.ids == token_ids[:, None], rows.weights, 0).sum(dim=1)


def score_batch(batch: DraftBatch, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """(ln D of these tokens in the rows as they would have been sent, guessed), `[B]`; see `ops.score_tokens`."""
    scores, finite = draft_scores(batch)
    greedy = batch.law.greedy
    logprob = torch.full_like(batch.row_mass, -torch.inf)
    guessed = torch.zeros_like(finite)
    sure = (greedy | batch.coupled).nonzero()[:, 0]
    if len(sure):
        columns = guesses(batch, log_law(scores[sure], batch.law, sure), sure)
        guess = columns if batch.token_map is None else batch.token_map[columns]
        guessed[sure] = finite[sure] & (guess == token_ids[sure])
    some = (~greedy).nonzero()[:, 0]
    if len(some):
        weights = weight_of(draft_rows(batch, scores, some), token_ids[some])
        logprob[some] = (weights.to(torch.float32) / ROW_TOTAL).log()
    logprob = torch.where(greedy & guessed, 0.0, logprob)
    return torch.where(finite, logprob, -torch.inf), guessed

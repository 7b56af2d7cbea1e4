"""`draft_step`: raw draft logits to a token and the row it was sampled from (specification 1.2).

The row is made first and the token is drawn from its integers, so the row is the draft's true distribution.
"""

import torch
from torch import Tensor

from specmesh.kernels.reference.batch import DraftBatch, DraftResult, DraftRows, spread
from specmesh.kernels.reference.choose import NoiseKey, first_largest, noisy_largest
from specmesh.kernels.reference.law import adjusted_scores, log_law, non_finite
from specmesh.kernels.reference.philox import key_integers, philox
from specmesh.kernels.reference.truncation import keep_largest
from specmesh.runtime.contract import ROW_TOTAL, ROW_TOTAL_BITS, Purpose
from specmesh.runtime.philox import draft_draw as scalar_draw

MAX_ROW = 4096
"""No row may be longer: the largest weight must be able to give one to each of the others."""

FEW_DRAWS = 16
"""Up to so many draws are quicker one by one, in integers of Python: 15 microseconds each, against 250 for an array."""


def draft_batch(batch: DraftBatch) -> DraftResult:
    """One drafted token per session. Temperature 0 and COUPLED are deterministic and have no row.

    `logprob` is ln of the token's weight in its row; of a deterministic token, ln of its probability under the draft's
    own law (at temperature 0: that of temperature 1), for people and policies.
    """
    log_draft, finite, greedy = draft_law(batch)
    token_ids = torch.zeros_like(batch.key)
    logprob = torch.zeros_like(batch.row_mass)
    deterministic = (greedy | batch.coupled).nonzero()[:, 0]
    if len(deterministic):
        column = guesses(batch, log_draft, deterministic)
        logprob[deterministic] = log_draft[deterministic, column]
        token_ids[deterministic] = column if batch.token_map is None else batch.token_map[column]
    sampled = ~(greedy | batch.coupled)
    some = sampled.nonzero()[:, 0]
    if len(some) == 0:
        return DraftResult(token_ids, logprob, finite, sampled, None)
    rows = make_rows(log_draft[some], batch.row_mass[some], batch.max_row[some], batch.token_map)
    token_ids[some], weight = sample_rows(
        rows, draft_draw(batch.key[some], batch.block_start[some], batch.offset[some])
    )
    logprob[some] = (weight.to(torch.float32) / ROW_TOTAL).log()
    return DraftResult(token_ids, logprob, finite, sampled, rows)


def draft_law(batch: DraftBatch) -> tuple[Tensor, Tensor, Tensor]:
    """ln of each session's draft law `[B, V]` by column, which sessions are finite, which greedy.

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
    return log_law(scores, batch.law, sessions), ~bad, batch.law.greedy


def guesses(batch: DraftBatch, log_draft: Tensor, sessions: Tensor) -> Tensor:
    """Columns `[n]` of what deterministic sessions propose: the arg-max, under COUPLED with the shared noise."""
    columns = torch.empty_like(sessions)
    greedy = batch.law.greedy[sessions]
    columns[greedy] = first_largest(log_draft[sessions[greedy]])
    coupled = sessions[~greedy]
    if len(coupled):
        zero = torch.zeros_like(coupled)
        position = batch.block_start[coupled] + batch.offset[coupled]
        noise = NoiseKey(batch.key[coupled], position, zero, zero + int(Purpose.COUPLED))
        token_map = None if batch.token_map is None else batch.token_map[: log_draft.shape[1]]
        columns[~greedy] = noisy_largest(log_draft[coupled], noise, token_map)
    return columns


def make_rows(log_probs: Tensor, row_mass: Tensor, max_row: Tensor, token_map: Tensor | None = None) -> DraftRows:
    """Rows of laws ln D `[n, V]` by column: the fewest columns whose mass reaches `row_mass`, at most `max_row`."""
    return DraftRows(*_quantised(*_kept(log_probs, row_mass, max_row), token_map))


def _kept(log_probs: Tensor, row_mass: Tensor, max_row: Tensor) -> tuple[Tensor, Tensor]:
    """(columns ascending, probabilities), `[n, K]` padded with probability 0."""
    keep = keep_largest(log_probs, max_row.clamp(min=1, max=MAX_ROW), row_mass, of_limited=False)
    row, column = keep.nonzero(as_tuple=True)
    values = log_probs[row, column].exp()
    row, column, values = (x[values > 0] for x in (row, column, values))
    sizes = torch.bincount(row, minlength=len(log_probs))
    place = spread(sizes)[1]
    columns = sizes.new_zeros((len(log_probs), int(sizes.max())))
    kept = log_probs.new_zeros(columns.shape)
    columns[row, place] = column
    kept[row, place] = values
    return columns, kept


def _quantised(columns: Tensor, probs: Tensor, token_map: Tensor | None) -> tuple[Tensor, Tensor]:
    """Integer weights >= 1 that sum to exactly 2^24; what rounding leaves over or short goes to the largest."""
    entry = probs > 0
    share = probs / probs.sum(dim=1, keepdim=True)
    weights = torch.where(entry, (share * ROW_TOTAL).to(torch.int64).clamp(min=1), 0)
    top = weights.argmax(dim=1, keepdim=True)
    weights.scatter_add_(1, top, ROW_TOTAL - weights.sum(dim=1, keepdim=True))
    return columns if token_map is None else torch.where(entry, token_map[columns], 0), weights


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
    log_draft, finite, greedy = draft_law(batch)
    rows = make_rows(log_draft, batch.row_mass, batch.max_row, batch.token_map)
    logprob = (weight_of(rows, token_ids).to(torch.float32) / ROW_TOTAL).log()
    guessed = torch.zeros_like(finite)
    some = (greedy | batch.coupled).nonzero()[:, 0]
    columns = guesses(batch, log_draft, some)
    guess = columns if batch.token_map is None else batch.token_map[columns]
    guessed[some] = finite[some] & (guess == token_ids[some])
    logprob = torch.where(greedy, torch.where(guessed, 0.0, -torch.inf), logprob)
    return torch.where(finite, logprob, -torch.inf), guessed

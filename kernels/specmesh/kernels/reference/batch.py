"""Tensor arguments of the kernels: ragged lists end to end, so that no session pays for another's length."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sparse values per item: item i has `ids[offsets[i]:offsets[i + 1]]` and the same share of `values`.

    Shapes: offsets `[n + 1]` int64, ids `[m]` int64, values `[m]`.
    """

    offsets: Tensor
    ids: Tensor
    values: Tensor

    def entries(self, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Entries of the chosen items: (place in `items`, ids, values), each `[k]`, in order."""
        start = self.offsets[items]
        place, within = spread(self.offsets[items + 1] - start)
        index = start[place] + within
        return place, self.ids[index], self.values[index]


def spread(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """For lists of these sizes end to end: which list each element is in and its place there, each `[sum]`."""
    which = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    ends = sizes.cumsum(0)
    return which, torch.arange(len(which), device=sizes.device) - (ends - sizes)[which]


@dataclass(frozen=True, slots=True)
class LawParams:
    """What turns logits into the law, per session (specification 1.1).

    Scalars are `[B]`: float32, `top_k` int64 (0 = off). `bias` holds float32 values; `counts` the occurrences
    (int64) in prompt and output up to the block start of the ids a penalised session has seen.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    bias: Ragged
    counts: Ragged

    @property
    def greedy(self) -> Tensor:
        """`[B]` bool."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class VerifyBatch:
    """One verification of B sessions.

    - `logits` `[R, W]` raw target logits, any float type and strides, W >= vocabulary_size; session b owns rows
      `row_starts[b]..row_starts[b + 1] - 1`, one per drafted token and one more. `row_starts` is `[B + 1]` int64.
    - `draft_token_ids` `[R - B]` int64: those of session b start at `row_starts[b] - b`.
    - `draft_rows`: per drafted token its sparse row; values are weights (int64) that sum to 2^24. No entries = one-hot.
    - `block_start`, `key` `[B]` int64; `coupled`, `block_rule` `[B]` bool (neither: TOKEN).
    """

    logits: Tensor
    vocabulary_size: int
    row_starts: Tensor
    draft_token_ids: Tensor
    draft_rows: Ragged
    block_start: Tensor
    key: Tensor
    coupled: Tensor
    block_rule: Tensor
    law: LawParams

    @property
    def lengths(self) -> Tensor:
        """Drafted tokens per session, `[B]`."""
        return self.row_starts[1:] - self.row_starts[:-1] - 1

    def draft_index(self, sessions: Tensor, offsets: Tensor) -> Tensor:
        """Where in `draft_token_ids` the token at this offset of this session is."""
        return self.row_starts[sessions] - sessions + offsets


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Outcomes, `[B]` each; where `finite` is False the other two mean nothing."""

    num_accepted: Tensor
    next_token: Tensor
    finite: Tensor


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """One drafted position of B sessions.

    `logits` `[B, W]`; `token_map` `[W]` int64 ascending: the ids of a head over a subset of the vocabulary, or None;
    `block_start`, `offset`, `key`, `max_row` `[B]` int64, `row_mass` `[B]` float32, `coupled` `[B]` bool.
    `law.counts` includes the draft prefix.
    """

    logits: Tensor
    vocabulary_size: int
    token_map: Tensor | None
    block_start: Tensor
    offset: Tensor
    key: Tensor
    coupled: Tensor
    max_row: Tensor
    row_mass: Tensor
    law: LawParams


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Rows as they go on the wire, `[B, K]` padded at the end with weight 0: ids ascending, weights int64 >= 1."""

    ids: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class DraftResult:
    """Drafted tokens `[B]`; `logprob` float32 `[B]`; rows of sessions that sample (None when no session does).

    `sampled` `[B]` bool says which sessions the rows belong to, in order.
    """

    token_ids: Tensor
    logprob: Tensor
    finite: Tensor
    sampled: Tensor
    rows: DraftRows | None

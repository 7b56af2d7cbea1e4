"""Plain objects that services hand to `specmesh.kernels.ops`, one per session, and get back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specmesh.runtime.types import Rule, Sampling, TokenLogprob


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class VerifyInput:
    """A block to verify.

    `rows`: decoded (ids, weights) per drafted token, or empty when all are one-hot. `key` is the verify key, under
    COUPLED the shared seed. `token_counts`: occurrences in prompt and output up to the block start; None when the
    sampling has no penalties.
    """

    block_start: int
    draft_token_ids: Sequence[int]
    rows: Sequence[tuple[NDArray[np.uint32], NDArray[np.uint32]]]
    sampling: Sampling
    rule: Rule
    key: int
    token_counts: Mapping[int, int] | None = None


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class VerifyOutcome:
    """A verified block. `finite` False: the target's logits were NaN or infinite where it mattered, ignore the rest.

    `logprobs`: one per emitted token (`num_accepted` + 1) under the processed law, empty when not asked for; at
    temperature 0 under the law of temperature 1 after bias and penalties, untruncated.
    """

    num_accepted: int
    next_token: int
    finite: bool
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftInput:
    """A position to draft at: that of `block_start` + `offset`.

    `key` is the draft key, under COUPLED the shared seed. `token_counts`: prompt, output and the block so far; None
    when the sampling has no penalties.
    """

    block_start: int
    offset: int
    sampling: Sampling
    rule: Rule
    key: int
    token_counts: Mapping[int, int] | None
    max_row: int
    row_mass: float


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """A drafted token. `row` None: deterministic (temperature 0, COUPLED). Not `finite`: nothing was sampled."""

    token_id: int
    row: bytes | None
    logprob: float
    finite: bool

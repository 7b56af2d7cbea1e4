"""Choosing one token of a row: the arg-max, or the arg-max under noise, which is a draw from the law (Gumbel-max)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specmesh.kernels.reference.philox import NOISE_MAX, NOISE_MIN, noise_from_words, token_words, words_of_tokens

_DENSE_SIZE = 1024
"""Rows up to this many tokens are all done at once; larger ones one by one, where only tokens that can win count."""


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Which noise a row gets: key, block start, offset and purpose, int64 `[n]` each."""

    key: Tensor
    block_start: Tensor
    offset: Tensor
    purpose: Tensor

    def row(self, index: int) -> "NoiseKey":
        """The noise of one row, `[1]` each."""
        at = slice(index, index + 1)
        return NoiseKey(self.key[at], self.block_start[at], self.offset[at], self.purpose[at])


def first_largest(scores: Tensor) -> Tensor:
    """Column of the largest of each row `[n, V]`, the lowest one on a tie; of a NaN where there is one."""
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1)
    # NumPy's is vectorised, torch's is not: 3 against 50 microseconds for a row of 49,152.
    return torch.from_numpy(scores.numpy().argmax(axis=-1))


def noisy_largest(scores: Tensor, noise: NoiseKey, token_map: Tensor | None = None) -> Tensor:
    """Column of the largest score + noise of each row `[n, V]`; noise goes by token id.

    With scores = ln of a law (up to a constant) this draws from the law.
    """
    if scores.shape[1] <= _DENSE_SIZE:
        return first_largest(scores + noise_from_words(_row_words(noise, scores.shape[1], token_map)))
    return torch.cat([_noisy_largest_of_row(scores[i], noise.row(i), token_map) for i in range(len(scores))])


def _noisy_largest_of_row(scores: Tensor, noise: NoiseKey, token_map: Tensor | None) -> Tensor:
    """The same for one long row, `[1]`: a token too far below the best cannot win whatever its noise."""
    size = len(scores)
    able = scores >= scores.max() + (NOISE_MIN - NOISE_MAX)
    num_able = int(able.count_nonzero())
    if num_able == 0:  # NaN compares with nothing; the caller knows such rows and does not read the answer
        return torch.zeros_like(noise.key)
    if num_able * 4 > size:
        return first_largest(scores[None] + noise_from_words(_row_words(noise, size, token_map)))
    candidates = able.nonzero()[:, 0]
    token_ids = candidates if token_map is None else token_map[candidates]
    words = words_of_tokens(noise.key, noise.block_start, noise.offset, noise.purpose, token_ids)
    return candidates[first_largest((scores[candidates] + noise_from_words(words))[None])]


def _row_words(noise: NoiseKey, size: int, token_map: Tensor | None) -> Tensor:
    known = size if token_map is None else int(token_map[-1]) + 1
    words = token_words(noise.key, noise.block_start, noise.offset, noise.purpose, known)
    return words if token_map is None else words[:, token_map]

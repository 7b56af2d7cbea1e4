"""Counter-based random numbers on tensors: Philox4x32-10, the same integers as `specmesh.runtime.philox`.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Specification 1.4 gives the counter:
(block start position, offset in the block, purpose, token id or lane).
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = tuple[Tensor, Tensor, Tensor, Tensor]
Integers = TypeVar("Integers", Tensor, NDArray[np.int64])

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10
_LOW = 0xFFFFFFFF

_UNIT_24 = 2.0**-24
_UNIT_32 = 2.0**-32
_BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 under 1: without it the top 128 words would give noise -inf and lose a token that must win."""

NOISE_MIN = -2.8120
NOISE_MAX = 22.8740
"""Bounds of `noise_from_words`, a little generous: -log(24 ln 2) and 33 ln 2."""


def key_tensor(keys: Sequence[int]) -> Tensor:
    """Keys in [0, 2^64) as int64 `[n]` with the same bits."""
    return torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64))


def key_integers(keys: Tensor) -> list[int]:
    """The inverse of `key_tensor`."""
    return [key & (2**64 - 1) for key in keys.tolist()]


def philox(key: Tensor, counter: tuple[Tensor | int, Tensor | int, Tensor | int, Tensor | int]) -> Words:
    """Four words in [0, 2^32) as int64 per counter; `key` and the counter words broadcast against each other.

    A counter word that is a number or small stays so for as long as the rounds allow: the first rounds are nearly free.
    """
    words = [torch.as_tensor(word, dtype=torch.int64) for word in counter]
    if key.device.type == "cpu":  # NumPy runs the same arithmetic with a fifth of the cost per operation
        arrays = _rounds([np.atleast_1d(word.numpy()) for word in words], np.atleast_1d(key.numpy()))
        number = key.dim() == 0 and all(word.dim() == 0 for word in words)  # it was given a dimension to work with
        c0, c1, c2, c3 = (torch.from_numpy(np.asarray(array[0]) if number else array) for array in arrays)
        return c0, c1, c2, c3
    c0, c1, c2, c3 = _rounds(words, key)
    return c0, c1, c2, c3


def _rounds(counter: list[Integers], key: Integers) -> list[Integers]:
    """The ten rounds on int64 arrays or tensors."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & _LOW, (key >> 32) & _LOW
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        # Shifts and products leave rubbish above bit 31; it is masked where it would count, before the next product.
        c0, c2 = ((p1 >> 32) ^ c1 ^ k0) & _LOW, ((p0 >> 32) ^ c3 ^ k1) & _LOW
        c1, c3 = p1, p0
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return [c0, c1 & _LOW, c2, c3 & _LOW]


def uniform_from_words(words: Tensor) -> Tensor:
    """u = (x >> 8) / 2^24 in float32, exact, in [0, 1)."""
    return (words >> 8).to(torch.float32) * _UNIT_24


def noise_from_words(words: Tensor) -> Tensor:
    """Gumbel noise -log(-log1p(-v)) in float32 with v = (x + 0.5) / 2^32."""
    middle = (words.to(torch.float32) + 0.5) * _UNIT_32
    return middle.clamp_(max=_BELOW_ONE).neg_().log1p_().neg_().log_().neg_()


def token_words(key: Tensor, block_start: Tensor, offset: Tensor | int, purpose: Tensor | int, size: int) -> Tensor:
    """The words of token ids 0..size-1, `[n, size]`: id t has output word t & 3 at lane t >> 2.

    `key`, `block_start`, `offset` and `purpose` are `[n]` (or numbers).
    """
    lanes = torch.arange((size + 3) // 4, device=key.device)
    column = [word[:, None] if isinstance(word, Tensor) else word for word in (block_start, offset, purpose)]
    words = philox(key[:, None], (column[0], column[1], column[2], lanes[None]))
    return torch.stack(words, dim=-1).reshape(len(key), -1)[:, :size]


def words_of_tokens(
    key: Tensor, block_start: Tensor, offset: Tensor | int, purpose: Tensor | int, token_ids: Tensor
) -> Tensor:
    """The same words for chosen ids only; all arguments broadcast, the result has the shape of `token_ids`."""
    words = [word.expand(token_ids.shape) for word in philox(key, (block_start, offset, purpose, token_ids >> 2))]
    return torch.stack(words, dim=-1).gather(-1, (token_ids & 3)[..., None])[..., 0]

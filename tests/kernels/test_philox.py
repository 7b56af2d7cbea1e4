"""Counter-based numbers: the published integers, the same in torch and NumPy, and floats with the right tails."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from specmesh.kernels.reference.choose import _DENSE_SIZE, NoiseKey, noisy_largest
from specmesh.kernels.reference.draft_step import FEW_DRAWS, draft_draw
from specmesh.kernels.reference.philox import (
    NOISE_MAX,
    NOISE_MIN,
    key_tensor,
    noise_from_words,
    philox,
    token_words,
    uniform_from_words,
    words_of_tokens,
)
from specmesh.runtime import philox as numpy_philox
from specmesh.runtime.contract import Purpose

KNOWN_ANSWERS = [  # Random123's kat_vectors for philox4x32-10: counter, key, words
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
Word = st.integers(0, 2**32 - 1)
Key = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_the_published_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    whole = key[0] | key[1] << 32
    assert tuple(int(word) for word in philox(key_tensor([whole]), counter)) == words  # type: ignore[arg-type]
    assert tuple(int(word) for word in numpy_philox.philox(whole, counter)) == words  # type: ignore[arg-type]


@given(key=Key, counters=st.lists(st.tuples(Word, Word, Word, Word), min_size=1, max_size=5))
def test_torch_and_numpy_give_the_same_integers(key: int, counters: list[tuple[int, int, int, int]]) -> None:
    columns = np.array(counters, dtype=np.int64).T
    ours = philox(key_tensor([key]), tuple(torch.from_numpy(column) for column in columns))  # type: ignore[arg-type]
    theirs = numpy_philox.philox(key, tuple(columns))  # type: ignore[arg-type]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.tolist() == other.tolist()


@given(st.lists(st.tuples(Key, Word, st.integers(0, 64)), min_size=1, max_size=2 * FEW_DRAWS))
def test_a_few_draws_are_the_integers_that_many_are(counters: list[tuple[int, int, int]]) -> None:
    keys, starts, offsets = zip(*counters, strict=True)
    words = philox(key_tensor(keys), (torch.tensor(starts), torch.tensor(offsets), int(Purpose.DRAFT), 0))[0]
    draws = draft_draw(key_tensor(keys), torch.tensor(starts), torch.tensor(offsets))
    assert draws.dtype == torch.int64
    assert draws.tolist() == (words >> 8).tolist()


@given(key=Key, block_start=Word, offset=st.integers(0, 8), size=st.integers(1, 21))
def test_token_t_has_word_t_and_3_at_lane_t_over_4(key: int, block_start: int, offset: int, size: int) -> None:
    words = token_words(key_tensor([key]), torch.tensor([block_start]), offset, 2, size)[0].tolist()
    for token, word in enumerate(words):
        assert word == int(numpy_philox.philox(key, (block_start, offset, 2, token >> 2))[token & 3])


def test_words_of_chosen_tokens_are_those_of_all_tokens() -> None:
    key, start = key_tensor([3, 2**64 - 1]), torch.tensor([5, 6])
    every = token_words(key, start, 1, 3, 103)
    chosen = torch.tensor([[0, 7, 101, 102], [3, 4, 5, 99]])
    assert words_of_tokens(key[:, None], start[:, None], 1, 3, chosen).equal(every.gather(1, chosen))


def test_uniforms_are_24_bits_and_below_one() -> None:
    words = torch.tensor([0, 255, 256, 2**32 - 1])
    assert uniform_from_words(words).tolist() == [0.0, 0.0, 2.0**-24, 1 - 2.0**-24]


def test_noise_is_finite_over_all_words_and_within_its_bounds() -> None:
    ends = torch.tensor([0, 1, 2**31, 2**32 - 257, 2**32 - 256, 2**32 - 1])
    noise = noise_from_words(ends)
    assert noise.isfinite().all()
    assert noise.diff().max() <= 0, "a larger word never has a larger noise"
    assert NOISE_MIN < noise.min() < -2.81
    assert 22.87 < noise.max() < NOISE_MAX


@pytest.mark.parametrize("exponent", [4, 8, 16, 20, 24, 28])
def test_tail_frequencies_of_the_noise_down_to_2_to_the_minus_28(exponent: int) -> None:
    """C39: Gumbel noise exceeds x with probability 1 - exp(-exp(-x)); counted exactly over all 2^32 words.

    The noise falls as the word rises, so the words above a threshold are found by bisection, none is sampled.
    """
    threshold = -np.log(-np.log1p(-(2.0**-exponent)))
    share = words_above(threshold) / 2.0**32
    assert share == pytest.approx(2.0**-exponent, rel=2e-6, abs=1.01 * 2.0**-32)


def words_above(threshold: float) -> int:
    low, high = 0, 2**32
    while low < high:
        middle = (low + high) // 2
        above = noise_from_words(torch.tensor([middle])).item() > threshold
        low, high = (middle + 1, high) if above else (low, middle)
    return low


def test_a_token_of_probability_6e_8_keeps_its_mass() -> None:
    """C39: against one rival with all the rest, counted over words. From 24 bits without a midpoint 42 % is lost."""
    rare = 6e-8
    words = word_grid(32)
    noise = noise_from_words(torch.from_numpy(words[:-1])).double().numpy()
    assert win_probability(noise, words, rare) == pytest.approx(rare, rel=1e-3)
    words = word_grid(24)
    coarse = -np.log(-np.log1p(-np.minimum(words[:-1] + 1, 2**24 - 1) / 2.0**24))
    assert win_probability(coarse, words, rare) == pytest.approx(0.58 * rare, rel=0.01)


def word_grid(bits: int) -> NDArray[np.int64]:
    """Ends of intervals that cover the words, narrow where the noise is steep."""
    octaves = [np.linspace(2**i, 2 ** (i + 1), 400, endpoint=False) for i in range(bits)]
    return np.concatenate(([0], np.unique(np.concatenate(octaves).astype(np.int64)), [2**bits]))


def win_probability(noise: NDArray[np.float64], words: NDArray[np.int64], probability: float) -> float:
    """P(ln p + noise > ln(1 - p) + the rival's true Gumbel noise), `noise` holding from each word to the next."""
    gap = np.log(probability / (1 - probability))
    return float((np.exp(-np.exp(-(noise + gap))) * np.diff(words)).sum() / words[-1])


def long_row(kind: str, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    scores = torch.randn(3, size, generator=generator) * (1.0 if kind == "flat" else 12.0)
    return scores.masked_fill(scores < 20, -torch.inf) if kind == "cut" else scores


@pytest.mark.parametrize("kind", ["flat", "peaked", "cut"])
@pytest.mark.parametrize("size", [_DENSE_SIZE + 1, 5003])
def test_looking_only_at_tokens_that_can_win_changes_nothing(kind: str, size: int) -> None:
    scores = long_row(kind, size)
    key = NoiseKey(key_tensor([1, 2, 3]), torch.tensor([9, 9, 10]), torch.tensor([0, 1, 2]), torch.tensor([2, 3, 4]))
    words = token_words(key.key, key.block_start, key.offset, key.purpose, size)
    assert noisy_largest(scores, key).equal((scores + noise_from_words(words)).argmax(dim=1))
    every_other = torch.arange(0, 2 * size, 2)
    words = token_words(key.key, key.block_start, key.offset, key.purpose, 2 * size)[:, every_other]
    assert noisy_largest(scores, key, every_other).equal((scores + noise_from_words(words)).argmax(dim=1))

"""Tables from counted texts: against the formula, one context at a time."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from specmesh.draft.ngram_counts import DISCOUNT, CountSettings, count_levels
from specmesh.draft.ngram_file import NgramTable, load_table, save_table

SIZE = 7
RANDOM = np.random.default_rng(17)
TEXTS = [RANDOM.choice(SIZE, size=n, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05]).astype(np.uint32) for n in (50, 3, 1, 80)]


def by_formula(context: tuple[int, ...]) -> dict[int, float]:
    """P(w | context), nothing dropped."""
    grams = Counter(
        tuple(text[i : i + len(context) + 1].tolist()) for text in TEXTS for i in range(len(text) - len(context))
    )
    counts = {gram[-1]: count for gram, count in grams.items() if gram[:-1] == context}
    total = sum(counts.values())
    probs = {token: (count - DISCOUNT) / total for token, count in counts.items()}
    if context:
        for token, prob in by_formula(context[1:]).items():
            probs[token] = probs.get(token, 0) + DISCOUNT * len(counts) / total * prob
    return probs


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_levels_hold_the_discounted_interpolated_counts(order: int) -> None:
    levels = count_levels(TEXTS, CountSettings(SIZE, order, max_continuations=SIZE, min_count=1))
    assert [level.length for level in levels] == list(reversed(range(order)))
    for level in levels:
        for index, key in enumerate(level.keys.tolist()):
            context = tuple(key // SIZE**place % SIZE for place in reversed(range(level.length)))
            entries = slice(level.offsets[index], level.offsets[index + 1])
            expected = by_formula(context)
            assert level.ids[entries].tolist() == sorted(expected)
            np.testing.assert_allclose(
                level.probs[entries].astype(float), [expected[t] for t in sorted(expected)], rtol=2e-3
            )


def test_the_likeliest_continuations_are_kept_and_rare_contexts_left_out(tmp_path: Path) -> None:
    levels = count_levels(TEXTS, CountSettings(SIZE, 3, max_continuations=2, min_count=4))
    for level in levels:
        assert (np.diff(level.offsets) <= 2).all()
    seen = Counter(tuple(text[i : i + 2].tolist()) for text in TEXTS for i in range(len(text) - 2))
    assert levels[0].keys.tolist() == sorted(a * SIZE + b for (a, b), count in seen.items() if count >= 4)
    best = sorted(by_formula(()), key=by_formula(()).__getitem__)[-2:]
    assert levels[2].ids.tolist() == sorted(best)
    save_table(tmp_path / "t.npz", NgramTable(levels, SIZE))
    ids, probs = load_table(tmp_path / "t.npz").levels[0].distribution(0)
    assert len(ids) == len(probs) <= 2
    assert probs.sum() == pytest.approx(1)


def test_texts_without_a_pair_give_a_unigram_only() -> None:
    levels = count_levels([np.array([3], np.uint32)], CountSettings(SIZE))
    assert [(level.length, level.ids.tolist()) for level in levels] == [(0, [3])]


def test_a_vocabulary_of_49152_takes_seconds() -> None:
    """A quarter of a million tokens, and compact: ids in two bytes, probabilities in two."""
    text = (RANDOM.zipf(1.3, size=250_000) % 49_152).astype(np.uint32)
    levels = count_levels([text], CountSettings(49_152))
    assert levels[0].ids.dtype == np.uint16
    assert levels[0].probs.dtype == np.float16
    assert len(levels[0].keys) > 1_000

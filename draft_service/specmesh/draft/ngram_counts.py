"""From counted n-grams to a table: absolute discounting, interpolated with the shorter context at every level.

P(w | a b) = max(c(a b w) - d, 0) / c(a b) + d t(a b) / c(a b) P(w | b), with t the number of different continuations
(Ney, Essen and Kneser, "On structuring probabilistic dependences in stochastic language modelling", 1994, with one
discount for all levels). Of every context the likeliest continuations are kept; the rest of the mass is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specmesh.draft.ngram_file import Level

DISCOUNT = 0.75
SMALLEST_PROBABILITY = 2.0**-24
"""The least that float16 can hold."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CountSettings:
    """`order` 3 is a trigram; contexts seen less often than `min_count` are left to the shorter ones."""

    vocabulary_size: int
    order: int = 3
    max_continuations: int = 16
    min_count: int = 2


@dataclass(frozen=True, slots=True)
class _Entries:
    """Continuations of contexts 0, 1, ... in order of (context, id)."""

    context: Ints
    ids: Ints
    values: Floats


def count_levels(texts: Sequence[NDArray[np.unsignedinteger[Any]]], settings: CountSettings) -> tuple[Level, ...]:
    """Levels of a table, the longest contexts first, from texts as arrays of ids; no n-gram spans two texts."""
    levels: list[Level] = []
    for length in range(settings.order):
        level = _level(texts, length, levels[0] if levels else None, settings)
        if len(level.keys) == 0:
            break
        levels.insert(0, level)
    return tuple(levels)


def _level(
    texts: Sequence[NDArray[np.unsignedinteger[Any]]], length: int, shorter: Level | None, settings: CountSettings
) -> Level:
    size = np.uint64(settings.vocabulary_size)
    grams, counts = np.unique(np.concatenate([_grams(text, length + 1, size) for text in texts]), return_counts=True)
    keys, context = np.unique(grams // size, return_inverse=True)
    total = np.bincount(context, weights=counts).astype(np.float64)
    kept = total >= (settings.min_count if length else 0)
    chosen = kept[context]
    renumbered = np.cumsum(kept) - 1
    entries = _Entries(
        renumbered[context[chosen]].astype(np.int64),
        (grams % size).astype(np.int64)[chosen],
        counts[chosen].astype(np.float64),
    )
    return _packed(length, keys[kept], _smoothed(entries, total[kept], keys[kept], shorter, settings), settings)


def _grams(text: NDArray[np.unsignedinteger[Any]], length: int, size: np.uint64) -> NDArray[np.uint64]:
    """All runs of `length` ids, as digits in base `size`."""
    grams = np.zeros(max(len(text) - length + 1, 0), np.uint64)
    for place in range(length):
        grams = grams * size + text[place : place + len(grams)].astype(np.uint64)
    return grams


def _smoothed(
    counted: _Entries, total: Floats, keys: NDArray[np.uint64], shorter: Level | None, settings: CountSettings
) -> _Entries:
    """Discounted, mixed with what the shorter context says, the likeliest kept."""
    own = np.maximum(counted.values - DISCOUNT, 0) / total[counted.context]
    if shorter is None:
        return _likeliest(_Entries(counted.context, counted.ids, own), settings.max_continuations)
    left = DISCOUNT * np.bincount(counted.context, minlength=len(total)) / total
    context, ids, probs = _of_shorter(keys, shorter, settings)
    merged = _merged(
        np.concatenate((counted.context, context)),
        np.concatenate((counted.ids, ids)),
        np.concatenate((own, probs * left[context])),
        settings.vocabulary_size,
    )
    return _likeliest(merged, settings.max_continuations)


def _of_shorter(keys: NDArray[np.uint64], shorter: Level, settings: CountSettings) -> tuple[Ints, Ints, Floats]:
    """(context, id, probability) of every context's shorter one: its last ids."""
    modulus = np.uint64(settings.vocabulary_size**shorter.length)
    at = np.minimum(np.searchsorted(shorter.keys, keys % modulus), len(shorter.keys) - 1)
    found = np.flatnonzero(shorter.keys[at] == keys % modulus)
    at = at[found]
    sizes = shorter.offsets[at + 1] - shorter.offsets[at]
    which = np.repeat(np.arange(len(found)), sizes)
    within = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    entry = shorter.offsets[at][which] + within
    return found[which], shorter.ids[entry].astype(np.int64), shorter.probs[entry].astype(np.float64)


def _merged(context: Ints, ids: Ints, values: Floats, size: int) -> _Entries:
    """Sums over equal (context, id)."""
    key = context * size + ids
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    return _Entries(key[first] // size, key[first] % size, np.add.reduceat(values[order], first))


def _likeliest(entries: _Entries, number: int) -> _Entries:
    """The `number` largest of each context, back in order of (context, id)."""
    order = np.lexsort((-entries.values, entries.context))
    context = entries.context[order]
    sizes = np.bincount(context)
    rank = np.arange(len(context)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = np.sort(order[rank < number])
    return _Entries(entries.context[kept], entries.ids[kept], entries.values[kept])


def _packed(length: int, keys: NDArray[np.uint64], entries: _Entries, settings: CountSettings) -> Level:
    sizes = np.bincount(entries.context, minlength=len(keys))
    narrow = np.uint16 if settings.vocabulary_size <= 2**16 else np.uint32
    return Level(
        length,
        keys,
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        entries.ids.astype(narrow),
        np.maximum(entries.values, SMALLEST_PROBABILITY).astype(np.float16),
    )

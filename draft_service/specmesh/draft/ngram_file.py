"""The file of a static n-gram table: distributions by context, as compact arrays in an .npz.

For every context length n in 0..order - 1 (n = 0 is the unigram; a length may be absent):

- `keys_n` uint64 `[C]`, strictly ascending: a context's last n ids as digits in base `vocabulary_size`, oldest first;
- `offsets_n` int64 `[C + 1]`: context i has the entries `offsets_n[i]` to `offsets_n[i + 1]` of
- `ids_n` uint16 or uint32 `[E]`, strictly ascending within a context, and
- `probs_n` float16, float32 or float64 `[E]`, all > 0; a context's need not sum to 1, they are divided by their sum.

Besides: `vocabulary_size`; and, where ids have a meaning, `tokenizer_digest` (text), `vocabulary_hashes` (uint8),
`eos_token_ids` and `name` (text). With `context_weights` (float64 `[M]`) the table is mixed with the session's own
past, matches of up to M tokens of it (`specmesh.draft.adaptive`).

A context is looked up by its longest ending that the file has. So smoothed counts with backoff are mixed when the file
is made, and an explicit law over the last two tokens is a file whose n = 2 has all contexts (`law_to_levels`).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specmesh.runtime.errors import InvalidValue

MAX_ORDER = 5
MAX_MATCH = 64
PARTS = ("keys", "offsets", "ids", "probs")


@dataclass(frozen=True, slots=True)
class Level:
    """The distributions of all contexts of one length; arrays as in the file."""

    length: int
    keys: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    ids: NDArray[np.unsignedinteger[Any]]
    probs: NDArray[np.floating[Any]]

    def find(self, key: int) -> int | None:
        """Index of a context."""
        at = int(self.keys.searchsorted(np.uint64(key)))
        return at if at < len(self.keys) and int(self.keys[at]) == key else None

    def distribution(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(ids ascending, probabilities that sum to 1)."""
        entries = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        probs = self.probs[entries].astype(np.float64)
        return self.ids[entries].astype(np.int64), probs / probs.sum()


@dataclass(frozen=True, slots=True)
class NgramTable:
    """A table in memory; `levels` with the longest contexts first."""

    levels: tuple[Level, ...]
    vocabulary_size: int
    digest: str = ""
    name: str = "table"
    tokenizer_digest: str = ""
    vocabulary_hashes: bytes = b""
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)
    context_weights: tuple[float, ...] = ()

    def find(self, tokens: Sequence[int]) -> tuple[Level, int] | None:
        """Where the longest ending of `tokens` is that the table has: level and index."""
        for level in self.levels:
            if level.length <= len(tokens):
                index = level.find(self._key(tokens[len(tokens) - level.length :]))
                if index is not None:
                    return level, index
        return None

    def _key(self, context: Sequence[int]) -> int:
        key = 0
        for token in context:
            key = key * self.vocabulary_size + token
        return key


def law_to_levels(law: NDArray[np.float64]) -> tuple[Level, ...]:
    """An explicit law `[V, V, V]` (second-to-last token, last token, next token) as levels.

    A context of one token has row 0 for the missing one, as the verifier's table target has.
    """
    size = law.shape[0]
    pairs = law.reshape(size * size, size)
    return _dense_level(2, pairs), _dense_level(1, law[0])


def _dense_level(length: int, rows: NDArray[np.float64]) -> Level:
    context, ids = np.nonzero(rows)
    counts = np.bincount(context, minlength=len(rows))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    keys = np.arange(len(rows), dtype=np.uint64)
    return Level(length, keys, offsets, ids.astype(np.uint32), rows[context, ids])


def save_table(path: Path, table: NgramTable) -> None:
    """Write a table; `digest` is not written, it is that of the file."""
    arrays: dict[str, Any] = {
        "vocabulary_size": np.int64(table.vocabulary_size),
        "tokenizer_digest": np.array(table.tokenizer_digest),
        "vocabulary_hashes": np.frombuffer(table.vocabulary_hashes, dtype=np.uint8),
        "eos_token_ids": np.array(sorted(table.eos_token_ids), dtype=np.int64),
        "name": np.array(table.name),
    }
    if table.context_weights:
        arrays["context_weights"] = np.array(table.context_weights)
    for level in table.levels:
        arrays |= {f"{part}_{level.length}": getattr(level, part) for part in PARTS}
    np.savez_compressed(path, **arrays)


def load_table(path: Path) -> NgramTable:
    """Read and check a table. Raises `InvalidValue` naming what is wrong with which array."""
    try:
        content = path.read_bytes()
        with np.load(path, allow_pickle=False) as arrays:
            parts = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise InvalidValue("drafter.path", f"cannot read table {path}: {error}") from error
    if "vocabulary_size" not in parts:
        raise InvalidValue("drafter.path", f"{path} is no n-gram table: it has no vocabulary_size")
    size = int(parts["vocabulary_size"])
    lengths = [n for n in reversed(range(MAX_ORDER)) if f"keys_{n}" in parts]
    levels = [Level(n, *(parts[f"{part}_{n}"] for part in PARTS)) for n in lengths]
    for level in levels:
        _check_level(level, size)
    weights = parts.get("context_weights", np.empty(0))
    if weights.ndim != 1 or len(weights) > MAX_MATCH or not np.all(np.isfinite(weights) & (weights > 0)):
        raise InvalidValue("context_weights", f"must be at most {MAX_MATCH} finite numbers above 0")
    return NgramTable(
        levels=tuple(levels),
        vocabulary_size=size,
        digest=hashlib.sha256(content).hexdigest(),
        name=str(parts.get("name", path.stem)),
        tokenizer_digest=str(parts.get("tokenizer_digest", "")),
        vocabulary_hashes=parts["vocabulary_hashes"].tobytes() if "vocabulary_hashes" in parts else b"",
        eos_token_ids=frozenset(parts["eos_token_ids"].tolist()) if "eos_token_ids" in parts else frozenset(),
        context_weights=tuple(weights.tolist()),
    )


def _check_level(level: Level, vocabulary_size: int) -> None:
    """What drafting relies on: nothing later can fail, or send a row that no verifier would take."""

    def need(condition: bool, part: str, message: str) -> None:
        if not condition:
            raise InvalidValue(f"{part}_{level.length}", message)

    keys, offsets, ids, probs = level.keys, level.offsets, level.ids, level.probs
    need(len(keys) > 0 and bool(np.all(keys[1:] > keys[:-1])), "keys", "must be strictly ascending and not empty")
    need(int(keys[-1]) < vocabulary_size**level.length, "keys", "must be ids of the vocabulary in its base")
    need(len(offsets) == len(keys) + 1 and int(offsets[0]) == 0, "offsets", "must be one more than the keys, from 0")
    need(bool(np.all(offsets[1:] > offsets[:-1])), "offsets", "must ascend: no context without an entry")
    need(int(offsets[-1]) == len(ids) == len(probs), "offsets", "must end at the number of entries")
    need(int(ids.max()) < vocabulary_size, "ids", f"must be below the vocabulary of {vocabulary_size}")
    need(bool(np.all(np.isfinite(probs) & (probs > 0))), "probs", "must be finite and above 0")
    rises = ids[1:] > ids[:-1]
    rises[offsets[1:-1] - 1] = True
    need(bool(np.all(rises)), "ids", "must be strictly ascending within a context")

"""The collected corpus: token ids of documents and prompts by domain, training and held out, in one file."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DOMAINS = ("prose", "code", "json", "copying")

IntArray = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Token sequences end to end: sequence i is ``tokens[starts[i]:starts[i + 1]]``."""

    tokens: IntArray
    starts: IntArray

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]], dtype: npt.DTypeLike) -> "Ragged":
        """Lay sequences end to end."""
        kept = [np.asarray(sequence, dtype=dtype) for sequence in sequences]
        lengths = np.array([0, *(len(sequence) for sequence in kept)], dtype=np.int64)
        return cls(np.concatenate(kept) if kept else np.empty(0, dtype), lengths.cumsum())

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> IntArray:
        return self.tokens[self.starts[index] : self.starts[index + 1]]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the split, by domain."""

    documents: dict[str, Ragged]  # empty for "copying": a copy needs its original in the context
    chats: dict[str, Ragged]  # rendered by the target's chat template, up to where the assistant begins
    openings: dict[str, Ragged]  # raw text to be continued


@dataclass(frozen=True, slots=True)
class Corpus:
    """Everything `write`, `distil` and `evaluate` read."""

    training: Side
    held_out: Side
    turn_start: int  # where the user's turn begins in a rendered chat: what comes before is the system's, needed once
    end_ids: tuple[int, ...]  # tokens that end an answer
    sources: list[dict[str, Any]]  # name, licence, documents and tokens of each source


def save_corpus(corpus: Corpus, path: Path) -> None:
    """Write one .npz file."""
    arrays: dict[str, IntArray] = {}
    for side_name, side in (("training", corpus.training), ("held_out", corpus.held_out)):
        for kind in ("documents", "chats", "openings"):
            for domain, ragged in getattr(side, kind).items():
                arrays[f"{side_name}/{kind}/{domain}/tokens"] = ragged.tokens
                arrays[f"{side_name}/{kind}/{domain}/starts"] = ragged.starts
    about = {"turn_start": corpus.turn_start, "end_ids": corpus.end_ids, "sources": corpus.sources}
    np.savez(path, about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), allow_pickle=False, **arrays)


def load_corpus(path: Path) -> Corpus:
    """Read what `save_corpus` wrote."""
    with np.load(path) as arrays:
        about = json.loads(bytes(arrays["about"]))
        sides = {}
        for side_name in ("training", "held_out"):
            kinds: dict[str, dict[str, Ragged]] = {}
            for kind in ("documents", "chats", "openings"):
                prefix = f"{side_name}/{kind}"
                kinds[kind] = {
                    domain: Ragged(arrays[f"{prefix}/{domain}/tokens"], arrays[f"{prefix}/{domain}/starts"])
                    for domain in DOMAINS
                    if f"{prefix}/{domain}/tokens" in arrays
                }
            sides[side_name] = Side(**kinds)
    return Corpus(sides["training"], sides["held_out"], about["turn_start"], tuple(about["end_ids"]), about["sources"])

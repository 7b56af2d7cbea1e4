"""Targets and drafts as explicit laws over the last two tokens, in files that the services load."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specmesh.draft.ngram_file import NgramTable, law_to_levels
from specmesh.draft.ngram_file import save_table as save_draft
from specmesh.verifier.target import save_table as save_target

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TableFiles:
    """A target and two drafts: one much like it, one that knows nothing of it."""

    target: Path
    near: Path
    far: Path
    logits: NDArray[np.float32]
    """Of the target, [V, V, V]."""

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self.logits.shape[0]


def write_tables(folder: Path, vocabulary_size: int, seed: int) -> TableFiles:
    """Files of random laws."""
    rng = np.random.default_rng(seed)
    shape = (vocabulary_size,) * 3
    logits = rng.normal(scale=1.3, size=shape).astype(np.float32)
    files = TableFiles(folder / "target.npz", folder / "near.npz", folder / "far.npz", logits)
    save_target(files.target, logits)
    for path, draft in ((files.near, logits + rng.normal(scale=0.5, size=shape)), (files.far, rng.normal(size=shape))):
        save_draft(path, NgramTable(law_to_levels(softmax(draft)), vocabulary_size))
    return files


def softmax(logits: NDArray[np.floating]) -> Floats:
    """Over the last axis, in double precision."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)

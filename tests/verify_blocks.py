"""Blocks to verify, written by hand."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from specmesh.kernels.inputs import VerifyInput
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import RowArrays
from specmesh.runtime.types import Rule, Sampling

PLAIN = Sampling()
RULES = [Rule.BLOCK, Rule.TOKEN, Rule.COUPLED]


def log_rows(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows).log()


def block(
    tokens: Sequence[int] = (),
    rows: Sequence[RowArrays] = (),
    *,
    sampling: Sampling = PLAIN,
    rule: Rule = Rule.BLOCK,
    key: int = 1,
    start: int = 3,
    counts: Mapping[int, int] | None = None,
) -> VerifyInput:
    return VerifyInput(start, tokens, rows, sampling, rule, key, counts)


def row_of(*weights: float) -> RowArrays:
    """A row over ids 0.. from shares that are multiples of 2^-24 nearly enough."""
    exact = [round(weight * ROW_TOTAL) for weight in weights]
    exact[0] += ROW_TOTAL - sum(exact)
    kept = [i for i, weight in enumerate(exact) if weight]
    return np.array(kept, dtype=np.uint32), np.array([exact[i] for i in kept], dtype=np.uint32)

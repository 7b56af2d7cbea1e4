"""`verify` in its compiled form: on a CUDA GPU where there is one, else on the CPU under Triton's interpreter."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specmesh.kernels.compiled.plan import Tuning
from specmesh.kernels.compiled.verify import verify
from specmesh.kernels.inputs import VerifyInput, VerifyOutcome

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = Tuning(
    chunk=32,
    draw_tile=32,
    draw_programs=3,
    max_row_tile=16,
    group=8,
    few_candidates=16,
    most_candidates=32,
)
"""Cut so small that rows of a hundred tokens have several chunks, tiles, groups, and rows longer than a tile."""


def compiled_verify(
    logits: Tensor,
    inputs: Sequence[VerifyInput],
    *,
    vocabulary_size: int,
    num_top: Sequence[int | None] | None = None,
    tuning: Tuning = SMALL,
) -> list[VerifyOutcome]:
    """The interpreter is NumPy, which warns of what a GPU does in silence: infinities less infinities, and the like."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return verify(logits.to(DEVICE), inputs, vocabulary_size=vocabulary_size, num_top=num_top, tuning=tuning)

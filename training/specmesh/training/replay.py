"""Expected tokens per step from one pass over a text: virtual replay.

A text drawn from the target's law tells of every draft how far a block of it would have survived from every position.
With r = D/T along the text the chance that m drafted tokens are kept is, under TOKEN, the product of min(1, r) (arXiv
2211.17192), and under BLOCK the running minimum of the product of r (arXiv 2403.10444). Walking the text with these
chances gives the expected number of steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[Any]


def survival(ratios: FloatArray, length: int, rule: str) -> FloatArray:
    """The chance that at least m of `length` tokens drafted from each position are kept, m = 0..length.

    `ratios`: [n], D/T of the token at each position. Returns [n, length + 1]; nothing survives the text's end.
    """
    if rule not in ("TOKEN", "BLOCK"):
        raise ValueError(f"no such rule: {rule}")
    padded = np.concatenate([ratios, np.zeros(length)])
    kept = [np.ones(len(ratios))]
    product = np.ones(len(ratios))
    for offset in range(length):
        ratio = padded[offset : offset + len(ratios)]
        product = product * (np.minimum(1, ratio) if rule == "TOKEN" else ratio)
        kept.append(np.minimum(kept[-1], product))
    return np.stack(kept, axis=1)


def tokens_per_step(survivals: Sequence[FloatArray], block_length: int) -> float:
    """Emitted tokens over expected steps. `survivals`: one [n, K + 1] a text, K >= block_length."""
    tokens = sum(len(kept) for kept in survivals)
    return float(tokens / sum(expected_steps(kept, block_length) for kept in survivals))


def expected_steps(kept: FloatArray, block_length: int) -> float:
    """Of one text: the sum over positions of the chance that a step starts there. `kept`: [n, K + 1]."""
    upto = kept[:, : block_length + 1]
    ends_after = upto - np.concatenate([upto[:, 1:], np.zeros((len(upto), 1))], axis=1)
    starts = np.zeros(len(upto) + block_length + 1)
    starts[0] = 1
    for position, ends in enumerate(ends_after):
        starts[position + 1 : position + block_length + 2] += starts[position] * ends
    return float(starts[: len(upto)].sum())

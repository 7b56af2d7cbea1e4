"""A law over a handful of ids: its shape, its row, its guess, its draw; in plain Python, the quickest for so few.

Temperature and truncation only. Penalties and bias, what else a request may ask for, are the kernels'.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specmesh.runtime.contract import ROW_TOTAL, Purpose
from specmesh.runtime.philox import philox
from specmesh.runtime.rows import encode_row
from specmesh.runtime.types import Sampling

Law = Mapping[int, float]
"""Probabilities > 0 by id, up to a constant."""
COLDEST = 1e-30
"""Temperatures under this act as this, as the kernels have it."""


class SparseRow:
    """A row: integer weights >= 1 that sum to 2^24, ids ascending (specification 1.2)."""

    __slots__ = ("ids", "weights")

    def __init__(self, law: Law, *, max_row: int, row_mass: float) -> None:
        """The fewest ids whose mass reaches `row_mass`, at most `max_row`; of equals the lower id."""
        kept, mass = largest(law, max_row, row_mass * sum(law.values()))
        weights = {token: max(int(law[token] / mass * ROW_TOTAL), 1) for token in kept}
        weights[kept[0]] += ROW_TOTAL - sum(weights.values())
        self.ids = sorted(kept)
        self.weights = [weights[token] for token in self.ids]

    def draw(self, number: int) -> int:
        """Index of the first id whose cumulative weight exceeds a number in [0, 2^24)."""
        for index, weight in enumerate(self.weights):
            number -= weight
            if number < 0:
                return index
        raise ValueError(f"a draw must lie in [0, {ROW_TOTAL})")

    def logprob(self, token_id: int) -> float:
        """ln of a token's weight over 2^24; -inf outside the row."""
        if token_id not in self.ids:
            return -math.inf
        return math.log(self.weights[self.ids.index(token_id)] / ROW_TOTAL)

    def encode(self) -> bytes:
        """As it goes on the wire."""
        return encode_row(np.array(self.ids), np.array(self.weights))


def largest(law: Law, limit: int, mass: float) -> tuple[list[int], float]:
    """(ids, their mass): of the `limit` likeliest, likeliest first, the fewest whose mass reaches `mass`; one or more.

    Of equals the lower id comes first.
    """
    kept: list[int] = []
    reached = 0.0
    for token in sorted(law, key=lambda token: (-law[token], token))[:limit]:
        kept.append(token)
        reached += law[token]
        if reached >= mass:
            break
    return kept, reached


def can_shape(sampling: Sampling) -> bool:
    """Whether `shape` is all there is to a request's sampling."""
    return not (sampling.has_penalties or sampling.logit_bias)


def shape(law: Law, sampling: Sampling) -> Law:
    """The law at a request's temperature (> 0), then top-k, top-p, min-p (specification 1.1)."""
    shaped = sharpen(law, sampling.temperature)
    if not sampling.top_k and sampling.top_p >= 1 and sampling.min_p <= 0:
        return shaped
    limit = sampling.top_k or len(shaped)
    kept, mass = largest(shaped, limit, math.inf)
    if sampling.top_p < 1:
        kept, _ = largest(shaped, limit, sampling.top_p * mass)
    least = sampling.min_p * shaped[kept[0]]
    return {token: shaped[token] for token in kept if shaped[token] >= least}


def sharpen(law: Law, temperature: float) -> Law:
    """Powers of the probabilities, the largest of them 1; what becomes 0 is left out."""
    if temperature == 1:
        return law
    most = max(law.values())
    powers = {token: (prob / most) ** (1 / max(temperature, COLDEST)) for token, prob in law.items()}
    return {token: power for token, power in powers.items() if power > 0}


def likeliest(law: Law) -> int:
    """The largest probability's id, the lowest on a tie."""
    return min(law, key=lambda token: (-law[token], token))


def coupled_guess(law: Law, *, key: int, position: int) -> int:
    """The id of the largest ln D + noise, with the noise that the verifier adds to ln T (specification 1.3)."""
    ids = np.array(sorted(law))
    return noisy_largest(ids, np.log([law[token] for token in ids.tolist()]), key=key, position=position)


def noisy_largest(ids: NDArray[np.integer], scores: NDArray[np.floating], *, key: int, position: int) -> int:
    """The id of the largest score + noise; ids [n] ascending, scores [n] = ln D up to a constant."""
    words = np.stack(philox(key, (position, 0, int(Purpose.COUPLED), ids >> 2)), axis=-1)
    middle = (words[np.arange(len(ids)), ids & 3].astype(np.float64) + 0.5) / 2**32
    noise = -np.log(-np.log1p(-middle))
    return int(ids[(scores + noise).argmax()])

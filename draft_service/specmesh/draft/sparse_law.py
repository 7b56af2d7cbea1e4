"""A law over a handful of ids: its row, its guess, its draw; in plain Python, which for so few is the quickest.

The transform is the temperature alone. What else a request may ask for (truncation, penalties, bias) is the kernels'.
"""

import math
from collections.abc import Mapping

import numpy as np

from specmesh.runtime.contract import ROW_TOTAL, Purpose
from specmesh.runtime.philox import philox
from specmesh.runtime.rows import encode_row
from specmesh.runtime.types import Sampling

Law = Mapping[int, float]
"""Probabilities > 0 by id, up to a constant."""


class SparseRow:
    """A row: integer weights >= 1 that sum to 2^24, ids ascending (specification 1.2)."""

    __slots__ = ("ids", "weights")

    def __init__(self, law: Law, *, temperature: float, max_row: int, row_mass: float) -> None:
        """The fewest ids whose mass reaches `row_mass`, at most `max_row`; of equals the lower id."""
        sharpened = sharpen(law, temperature)
        wanted, mass = row_mass * sum(sharpened.values()), 0.0
        kept: list[int] = []
        for token in sorted(sharpened, key=lambda token: (-sharpened[token], token))[:max_row]:
            kept.append(token)
            mass += sharpened[token]
            if mass >= wanted:
                break
        weights = {token: max(int(sharpened[token] / mass * ROW_TOTAL), 1) for token in kept}
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


def is_plain(sampling: Sampling) -> bool:
    """Whether the temperature is all there is to a request's sampling."""
    truncates = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
    return not (truncates or sampling.has_penalties or sampling.logit_bias)


def sharpen(law: Law, temperature: float) -> Law:
    """Powers of the probabilities, the largest of them 1."""
    most = max(law.values())
    return {token: (prob / most) ** (1 / temperature) for token, prob in law.items()} if temperature != 1 else law


def likeliest(law: Law) -> int:
    """The largest probability's id, the lowest on a tie."""
    return min(law, key=lambda token: (-law[token], token))


def coupled_guess(law: Law, *, temperature: float, key: int, position: int) -> int:
    """The id of the largest ln D + noise, with the noise that the verifier adds to ln T (specification 1.3)."""
    ids = np.array(sorted(law))
    words = np.stack(philox(key, (position, 0, int(Purpose.COUPLED), ids >> 2)), axis=-1)
    middle = (words[np.arange(len(ids)), ids & 3].astype(np.float64) + 0.5) / 2**32
    noise = -np.log(-np.log1p(-middle))
    scores = np.log([law[token] for token in ids.tolist()]) / temperature + noise
    return int(ids[scores.argmax()])

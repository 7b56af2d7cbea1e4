"""Which arm and length give the most tokens per second, when tokens per step and step times are known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specmesh.router.policies.interface import Choice

LEAST_SECONDS = 1e-9
TIE = 1e-9
"""Goodputs that differ by less than this share are equal: the shorter block wins."""


@dataclass(frozen=True, slots=True)
class Option:
    """A choice, the tokens a step of it emits on average, and its seconds."""

    choice: Choice
    tokens: float
    seconds: float

    @property
    def goodput(self) -> float:
        """Tokens per second: a ratio of means, never the mean of ratios."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def best_length(tokens: Sequence[float], seconds: float, per_token: float) -> int:
    """The block length of the highest goodput, the shortest on a tie.

    `tokens[k - 1]`: what a step of length k emits on average. It takes `seconds` + k `per_token`.
    """
    best, best_goodput = 1, 0.0
    for length, emitted in enumerate(tokens, start=1):
        goodput = emitted / max(seconds + length * per_token, LEAST_SECONDS)
        if goodput > best_goodput * (1 + TIE):
            best, best_goodput = length, goodput
    return best


def best_option(options: Iterable[Option]) -> Option:
    """The option of the highest goodput; on a tie the shorter one, then the first. Raises ValueError without any."""
    best: Option | None = None
    for option in options:
        if best is None or _beats(option, best):
            best = option
    if best is None:
        raise ValueError("there is nothing to choose from")
    return best


def _beats(option: Option, best: Option) -> bool:
    margin = TIE * best.goodput
    if option.choice.block_length < best.choice.block_length:
        return option.goodput >= best.goodput - margin
    return option.goodput > best.goodput + margin

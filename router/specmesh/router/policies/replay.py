"""Expected tokens per step of every block length, from one pass over an emitted text: virtual replay.

A text drawn from the target's law tells of every draft how far a block of it would have survived from each position.
With r = D/T along the text, the chance v_m that m drafted tokens are kept is the product of min(1, r) under TOKEN
(arXiv 2211.17192), the running minimum of the product of r under BLOCK (arXiv 2403.10444), and the product of the guess
bits under COUPLED and at temperature 0. A step of block length k that starts at s ends after m kept tokens with the
chance v_m - v_{m+1} (v_{k+1} = 0), so with pi_s the chance that a step starts at s:
pi_{s+m+1} += pi_s (v_m - v_{m+1}). Tokens per step are the tokens over the sum of pi. Acceptance is correlated along a
text, which this sees and the geometric formula does not.
"""

from collections.abc import Sequence


class _Start:
    """Blocks that start at one position: the chance of it by block length, and how far they have come."""

    __slots__ = ("chances", "kept", "num_judged", "product")

    def __init__(self, chances: list[float]) -> None:
        self.chances = chances
        self.kept = 1.0
        self.product = 1.0
        self.num_judged = 0


class Replay:
    """Walks one text, for all block lengths from 1 to `longest` at once."""

    __slots__ = ("_by_block", "_chances", "_longest", "_starts")

    def __init__(self, longest: int, *, by_block: bool) -> None:
        """`by_block`: rule BLOCK, which may make up for a bad ratio by a good one; else TOKEN, or bits."""
        self._longest = longest
        self._by_block = by_block
        self._chances = [1.0] * longest
        """pi of the position that comes next."""
        self._starts: list[_Start] = []
        """Those whose blocks may still be on."""

    def feed(self, ratio: float) -> list[float]:
        """One more token of the text, D/T of it; pi at its position by block length (index 0 is length 1)."""
        here = self._chances
        self._starts.append(_Start(here))
        self._chances = [0.0] * self._longest
        for start in self._starts:
            self._judge(start, ratio)
        self._starts = [start for start in self._starts if start.kept > 0.0 and start.num_judged <= self._longest]
        return here

    def _judge(self, start: _Start, ratio: float) -> None:
        """What the token does to blocks from `start`: those it ends have the next step start after it."""
        before, num_judged = start.kept, start.num_judged
        start.product *= ratio if self._by_block else min(ratio, 1.0)
        start.kept = min(before, start.product)
        start.num_judged += 1
        if num_judged > 0:  # all of a block this long was kept, so the token is the target's own
            self._chances[num_judged - 1] += start.chances[num_judged - 1] * before
        lost = before - start.kept
        if lost > 0.0:
            for index in range(num_judged, self._longest):
                self._chances[index] += start.chances[index] * lost


class Evidence:
    """Tokens replayed and, by block length, the steps that they would have taken; each token makes older ones fade."""

    __slots__ = ("_fade", "steps", "tokens")

    def __init__(self, longest: int, fade: float) -> None:
        """`fade`: what a token's weight is multiplied with for each later token."""
        self.tokens = 0.0
        self.steps = [0.0] * longest
        self._fade = fade

    def add(self, starts: Sequence[float]) -> None:
        """One token, as `Replay.feed` returns it."""
        fade = self._fade
        self.tokens = self.tokens * fade + 1.0
        self.steps = [steps * fade + start for steps, start in zip(self.steps, starts, strict=True)]

    def tokens_per_step(self, prior: Sequence[float], weight: float) -> list[float]:
        """By block length, with `weight` tokens' worth of `prior` (tokens per step by block length)."""
        tokens = self.tokens + weight
        return [tokens / (steps + weight / usual) for steps, usual in zip(self.steps, prior, strict=True)]

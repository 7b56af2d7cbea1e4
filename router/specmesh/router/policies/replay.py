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


class Replay:
    """Walks one text, for all block lengths from 1 to `longest` at once."""

    __slots__ = ("_by_block", "_chances", "_longest", "_starts")

    def __init__(self, longest: int, *, by_block: bool) -> None:
        """`by_block`: rule BLOCK, which may make up for a bad ratio by a good one; else TOKEN, or bits."""
        self._longest = longest
        self._by_block = by_block
        self._chances = [1.0] * longest
        """pi of the position that comes next."""
        self._starts: list[tuple[list[float], float, float]] = []
        """Of the latest positions, the nearest last: pi, and of blocks from there v_m and the product of r so far."""

    def feed(self, ratio: float) -> list[float]:
        """One more token of the text, D/T of it; pi at its position by block length (index 0 is length 1)."""
        here, following, longest = self._chances, [0.0] * self._longest, self._longest
        ratio = ratio if self._by_block else min(ratio, 1.0)
        starts = self._starts
        starts.append((here, 1.0, 1.0))
        num_judged = len(starts)
        for at, (chances, before, product) in enumerate(starts):
            num_judged -= 1
            if before <= 0.0:
                continue
            if num_judged > 0:  # all of a block this long was kept, so the token is the target's own
                following[num_judged - 1] += chances[num_judged - 1] * before
            product *= ratio
            kept = min(before, product)
            if kept < before:
                for index in range(num_judged, longest):
                    following[index] += chances[index] * (before - kept)
            starts[at] = chances, kept, product
        if len(starts) > longest:
            del starts[0]
        self._chances = following
        return here


class Evidence:
    """Tokens replayed and, by block length, the steps that they would have taken; what is newer makes older fade."""

    __slots__ = ("_fade", "steps", "tokens")

    def __init__(self, longest: int, fade: float) -> None:
        """`fade`: what a token's weight is multiplied with for each later token, piece by piece."""
        self.tokens = 0.0
        self.steps = [0.0] * longest
        self._fade = fade

    def add(self, piece: Sequence[Sequence[float]]) -> None:
        """Tokens that came together, each as `Replay.feed` returns it."""
        if piece:
            fade = self._fade ** len(piece)
            self.tokens = self.tokens * fade + len(piece)
            columns = zip(self.steps, zip(*piece, strict=True), strict=True)
            self.steps = [steps * fade + sum(starts) for steps, starts in columns]

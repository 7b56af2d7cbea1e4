"""UCB1 (Auer, Cesa-Bianchi and Fischer, 2002)."""

import math

from specmesh.router.policies.bandit import BanditPolicy
from specmesh.router.policies.estimates import RatioEstimate


class Ucb1Policy(BanditPolicy):
    """Plays the pair with the highest upper confidence bound, each once before any twice.

    As in the paper's UCB1-TUNED the width uses the measured variance, not the largest that [0, 1] allows: goodput
    varies far less than a coin, and a bound made for coins would explore for thousands of steps.
    """

    def _pick(self, estimates: list[RatioEstimate], scale: float) -> int:
        best = max(estimate.mean for estimate in estimates)
        log_tries = math.log(max(sum(estimate.num_tries for estimate in estimates), 1))

        def bound(estimate: RatioEstimate) -> float:
            tries = max(estimate.num_tries, estimate.num_samples)
            if tries == 0:
                return math.inf
            # A pair that was tried and has taught nothing yet is taken to be as good as the best.
            mean = (estimate.mean if estimate.num_samples else best) / scale
            width = 2 * self._settings.exploration * estimate.variance(scale) * log_tries / tries
            return mean + math.sqrt(width)

        bounds = [bound(estimate) for estimate in estimates]
        return bounds.index(max(bounds))

"""Thompson sampling (Thompson, 1933; Agrawal and Goyal, 2012)."""

from specmesh.router.policies.bandit import BanditPolicy
from specmesh.router.policies.estimates import RatioEstimate


class ThompsonPolicy(BanditPolicy):
    """Plays the pair whose draw from its Beta posterior is highest; the prior is uniform.

    A sample counts as many coin tosses as its measured variance says it is worth: one for a coin, more for goodput,
    which varies less.
    """

    def _pick(self, estimates: list[RatioEstimate], scale: float) -> int:
        draws = [self._draw(estimate, scale) for estimate in estimates]
        return draws.index(max(draws))

    def _draw(self, estimate: RatioEstimate, scale: float) -> float:
        if estimate.num_samples == 0:
            return self._random.random()
        mean = min(estimate.mean / scale, 1.0)
        tosses = (
            estimate.num_samples * max(mean * (1 - mean) / estimate.variance(scale), 1.0) / self._settings.exploration
        )
        return self._random.betavariate(1 + tosses * mean, 1 + tosses * (1 - mean))

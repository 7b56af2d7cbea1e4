"""Running estimates of a ratio, gain / cost, and the scale that puts them in [0, 1].

Goodput is a ratio of sums: the mean of per-step ratios would weigh a step that stalls as little as one that does not.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from specmesh.router.policies.interface import StepObservation

MAX_REWARD_VARIANCE = 0.25  # of anything in [0, 1]
PRIOR_WEIGHT = 2.0


@dataclass(slots=True)
class RatioEstimate:
    """gain / cost of one (arm, length) pair. `num_tries` also counts steps that taught nothing."""

    num_tries: int = 0
    num_samples: int = 0
    gain: float = 0.0
    cost: float = 0.0
    gain_squared: float = 0.0
    gain_cost: float = 0.0
    cost_squared: float = 0.0

    def add(self, gain: float, cost: float) -> None:
        """One step."""
        self.num_samples += 1
        self.gain += gain
        self.cost += cost
        self.gain_squared += gain * gain
        self.gain_cost += gain * cost
        self.cost_squared += cost * cost

    @property
    def mean(self) -> float:
        """Gain per cost so far; 0 before the first sample."""
        return self.gain / self.cost if self.cost else 0.0

    def variance(self, scale: float) -> float:
        """Of one step's scaled ratio (delta method), pulled towards the largest there is while samples are few."""
        ratio = self.mean
        residual = self.gain_squared - 2 * ratio * self.gain_cost + ratio * ratio * self.cost_squared
        mean_cost = self.cost / self.num_samples if self.num_samples else 1.0
        observed = max(residual, 0.0) / (mean_cost * scale) ** 2
        return (observed + PRIOR_WEIGHT * MAX_REWARD_VARIANCE) / (self.num_samples + PRIOR_WEIGHT)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a step taught: `gain` for `cost`."""

    gain: float
    cost: float


def acceptance_sample(observation: StepObservation) -> Sample | None:
    """The paper's reward, accepted / drafted; None when there is none."""
    if observation.choice.block_length == 0 or (observation.ended and observation.num_drafted == 0):
        return None
    # A draft that brought nothing in time earned nothing.
    return Sample(observation.num_accepted / max(observation.num_drafted, 1), 1.0)


def goodput_sample(observation: StepObservation) -> Sample | None:
    """Emitted tokens for seconds; None when the session ended in the step, or no time was measured."""
    seconds = observation.seconds.total
    if observation.ended or not (math.isfinite(seconds) and seconds > 0):
        return None
    return Sample(float(observation.num_emitted), seconds)


class StallGuard:
    """Bounds what one step can weigh: its seconds count as at most 8 and at least 1/64 of a median step's.

    Nothing comes out before `NUM_FIRST` steps have set the median, so that a slow first step cannot set it alone.
    """

    NUM_FIRST = 8
    NUM_RECENT = 63
    LEAST, MOST = 1 / 64, 8.0

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=self.NUM_RECENT)
        self._waiting: list[tuple[RatioEstimate, Sample]] = []

    def credit(self, estimate: RatioEstimate, sample: Sample) -> None:
        """Add `sample` to `estimate`, bounded; the first few are added together."""
        self._recent.append(sample.cost)
        self._waiting.append((estimate, sample))
        if len(self._recent) < self.NUM_FIRST:
            return
        usual = median(self._recent)
        for target, waiting in self._waiting:
            target.add(waiting.gain, min(max(waiting.cost, self.LEAST * usual), self.MOST * usual))
        self._waiting.clear()

"""What the bandits share: which (arm, length) pairs a step offers, and what each has earned."""

import random
from abc import ABC, abstractmethod
from collections import OrderedDict

from specmesh.router.policies.estimates import RatioEstimate, StallGuard, acceptance_sample, goodput_sample
from specmesh.router.policies.interface import PLAIN, Arm, Choice, StepObservation, StepView
from specmesh.router.policies.settings import PolicySettings

MAX_ARMS = 256
BEST_SCALED_GOODPUT = 0.5


class BanditPolicy(ABC):
    """A stochastic bandit over (arm, length) pairs; subclasses say which pair to play.

    Estimates outlive an arm's absence and are dropped, least recently used first, beyond `MAX_ARMS` arms.
    """

    wants_scores = False

    def __init__(self, *, seed: int, settings: PolicySettings) -> None:
        self._random = random.Random(seed)
        self._settings = settings
        self._learns_goodput = settings.reward == "goodput"
        self._estimates: OrderedDict[Arm | None, dict[int, RatioEstimate]] = OrderedDict()
        self._stalls = StallGuard()

    def choose(self, view: StepView) -> Choice:
        """The pair that the subclass picks; plain decoding when that is all there is."""
        offered = self._offered(view)
        estimates = [self._estimate(choice) for choice in offered]
        picked = 0 if len(offered) == 1 else self._pick(estimates, self._scale(estimates))
        # Counted now and not when observed: sessions that choose meanwhile see that this pair is being tried.
        estimates[picked].num_tries += 1
        return offered[picked]

    def also_score(self, view: StepView, choice: Choice) -> tuple[Arm, ...]:
        """None: a bandit learns from what it plays."""
        del view, choice
        return ()

    def observe(self, observation: StepObservation) -> None:
        """Credit the pair that was chosen, also when its block was late, cut or refused: that is what it costs."""
        estimate = self._estimate(observation.choice)
        if self._learns_goodput:
            sample = goodput_sample(observation)
            if sample is not None:
                self._stalls.credit(estimate, sample)
        else:
            sample = acceptance_sample(observation)
            if sample is not None:
                estimate.add(sample.gain, sample.cost)

    def forget(self, session_id: int) -> None:
        """Nothing is held by session."""
        del session_id

    @abstractmethod
    def _pick(self, estimates: list[RatioEstimate], scale: float) -> int:
        """Index of the pair to play; `scale` times a value in [0, 1] is a ratio."""

    def _offered(self, view: StepView) -> list[Choice]:
        """Pairs this step may choose among, in a stable order; never empty."""
        lengths = self._settings.candidate_lengths
        offered = [PLAIN] if 0 in lengths and self._learns_goodput else []
        for arm_view in sorted(view.arms, key=lambda arm_view: arm_view.arm):
            most = min(arm_view.max_block_length, view.max_block_length)
            offered += [Choice(arm_view.arm, length) for length in sorted({min(k, most) for k in lengths} - {0})]
        return offered or [PLAIN]

    def _scale(self, estimates: list[RatioEstimate]) -> float:
        """Goodput is scaled so that the best pair on offer stands at one half: room for one that is better."""
        if not self._learns_goodput:
            return 1.0
        return max(estimate.mean for estimate in estimates) / BEST_SCALED_GOODPUT or 1.0

    def _estimate(self, choice: Choice) -> RatioEstimate:
        """The pair's estimate, made on first use."""
        by_length = self._estimates.setdefault(choice.arm, {})
        self._estimates.move_to_end(choice.arm)
        if len(self._estimates) > MAX_ARMS:
            self._estimates.popitem(last=False)
        return by_length.setdefault(choice.block_length, RatioEstimate())

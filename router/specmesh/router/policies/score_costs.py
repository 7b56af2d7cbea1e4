"""What it costs to ask arms for scores: by how much the steps beside which they are asked take longer.

Nothing where every draft has a device of its own. Where drafts share processors with the target, an idle arm's forward
pass is taken from the target's.
"""

from collections import OrderedDict
from collections.abc import Iterable

from specmesh.router.policies.interface import Arm

LEAST_RATE = 0.05
"""How much of an error the estimate moves by, once it has seen some steps."""
LONGEST_DELAY = 3.0
"""Expected times of a step: a longer delay has other reasons, and counts as this much."""
MAX_SAVED_SECONDS = 1.0
"""What an arm may save, and so the most that a question is reckoned to cost: what made it so dear may be over."""
MAX_ARMS = 256


class _Cost:
    __slots__ = ("num_steps", "saved", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_steps = 0
        self.saved = 0.0


class ScoreCosts:
    """Estimates by arm, and how much of the time each has been granted."""

    def __init__(self, share: float) -> None:
        """`share`: of all steps' time that an arm's scores may take."""
        self._share = share
        self._costs: OrderedDict[Arm, _Cost] = OrderedDict()

    def affordable(self, arm: Arm) -> bool:
        """Whether there is time for it; nothing is known of an arm at first, so it is."""
        cost = self._costs.get(arm)
        return cost is None or cost.saved >= min(self.seconds(arm), MAX_SAVED_SECONDS)

    def seconds(self, arm: Arm) -> float:
        """What one question costs, as far as is known."""
        cost = self._costs.get(arm)
        return max(cost.seconds, 0.0) if cost else 0.0

    def ask(self, arms: Iterable[Arm]) -> None:
        """They are asked in the step that begins."""
        for arm in arms:
            cost = self._costs.setdefault(arm, _Cost())
            cost.saved -= min(self.seconds(arm), cost.saved)
            self._costs.move_to_end(arm)
            if len(self._costs) > MAX_ARMS:
                self._costs.popitem(last=False)

    def save(self, seconds: float) -> None:
        """A step took so long: every arm's share is put by."""
        for cost in self._costs.values():
            cost.saved = min(cost.saved + self._share * seconds, MAX_SAVED_SECONDS)

    def add(self, arms: Iterable[Arm], seconds: float, expected: float) -> None:
        """A step beside which `arms` were asked took `seconds` of the target's side, where `expected` is usual."""
        known = [self._costs[arm] for arm in arms if arm in self._costs]
        delay = min(seconds - expected, LONGEST_DELAY * expected)
        error = (delay - sum(cost.seconds for cost in known)) / max(len(known), 1)
        for cost in known:
            cost.num_steps += 1
            cost.seconds += error * max(1 / cost.num_steps, LEAST_RATE)

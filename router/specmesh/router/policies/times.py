"""What a step takes, by arm and block length, from the steps that were taken.

A step's time is the draft's and the rest: network, queue, forward pass, verification, router. Both are lines in the
block length, fitted to the latest steps, so they follow a load that changes within a dozen steps. Both depend on how
many sessions there are, and are kept by that number's magnitude.
"""

import math
from collections import OrderedDict, deque

from specmesh.router.policies.interface import PLAIN, Arm, Choice, StepSeconds

WINDOW = 12
OUTLIER = 4.0
"""Times beyond this multiple of the median, or below its inverse, are left out. A change to stay becomes the median."""
SLOPE_WEIGHT = 2.0
"""Of the slope expected without knowledge, in (block length) squared."""
MAX_ARMS = 256


class Line:
    """Seconds as a line in the block length."""

    __slots__ = ("_first", "_fitted", "_proportional", "_recent")

    def __init__(self, *, proportional: bool) -> None:
        """`proportional`: what to expect before several lengths were seen, a multiple of the length, or a constant."""
        self._proportional = proportional
        self._recent: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._first: tuple[int, float] | None = None
        self._fitted: tuple[float, float] | None = None

    @property
    def num_samples(self) -> int:
        """Steps that are not a session's first."""
        return len(self._recent)

    def add(self, length: int, seconds: float, *, first: bool) -> None:
        """A step; one that is a session's `first` had a context to take in, and counts until there is another."""
        if not (math.isfinite(seconds) and seconds >= 0):
            return
        if first:
            self._first = length, seconds
            if self._recent:
                return
        else:
            self._recent.append((length, seconds))
        self._fitted = None

    @property
    def fitted(self) -> tuple[float, float] | None:
        """(seconds at length 0, seconds per token) to expect; None before the first step."""
        if self._fitted is None and (self._recent or self._first):
            self._fitted = self._fit()
        return self._fitted

    def _fit(self) -> tuple[float, float]:
        """Least squares with a weak prior on the slope."""
        samples = list(self._recent) or [self._first or (0, 0.0)]
        middle = sorted([seconds for _, seconds in samples])[(len(samples) - 1) // 2]
        near = [(k, s) for k, s in samples if middle / OUTLIER <= s <= middle * OUTLIER]
        centre, level = sum([k for k, _ in near]) / len(near), sum([s for _, s in near]) / len(near)
        prior = level / centre if self._proportional and centre else 0.0
        together = sum([(k - centre) * (s - level) for k, s in near])
        spread = sum([(k - centre) ** 2 for k, _ in near])
        slope = max((together + SLOPE_WEIGHT * prior) / (spread + SLOPE_WEIGHT), 0.0)
        return level - slope * centre, slope


class StepTimes:
    """Times of the steps of all sessions."""

    def __init__(self) -> None:
        self._drafts: OrderedDict[Arm, dict[int, Line]] = OrderedDict()
        self._plain: dict[int, Line] = {}
        self._drafted: dict[int, Line] = {}

    @property
    def num_plain(self) -> int:
        """Steps by which plain decoding's time is known."""
        return sum(line.num_samples for line in self._plain.values())

    def num_samples(self, arm: Arm) -> int:
        """Steps by which the arm's time is known."""
        return sum(line.num_samples for line in self._drafts.get(arm, {}).values())

    def add(self, choice: Choice, seconds: StepSeconds, num_sessions: int, *, first: bool, warm: bool) -> None:
        """A step. `first`: of its session, so the target took a prompt in. `warm`: the draft had seen the session."""
        if not (math.isfinite(seconds.total) and seconds.total > 0):
            return
        rests = self._plain if choice == PLAIN else self._drafted
        rest = rests.setdefault(magnitude(num_sessions), Line(proportional=False))
        rest.add(choice.block_length, seconds.total - seconds.draft, first=first)
        if choice.arm is not None:
            lines = self._drafts.setdefault(choice.arm, {})
            self._drafts.move_to_end(choice.arm)
            if len(self._drafts) > MAX_ARMS:
                self._drafts.popitem(last=False)
            draft = lines.setdefault(magnitude(num_sessions), Line(proportional=True))
            draft.add(choice.block_length, seconds.draft, first=not warm)

    def plain(self, num_sessions: int) -> float | None:
        """Seconds of a step without a draft; None before any step."""
        near = _nearest(self._plain, num_sessions) or _nearest(self._drafted, num_sessions)
        return near.fitted[0] if near and near.fitted else None

    def drafted(self, arm: Arm, num_sessions: int) -> tuple[float, float] | None:
        """(seconds, seconds for each drafted token) of a step with a block; None while the arm has drafted nothing."""
        rest, draft = self.rest(num_sessions), _nearest(self._drafts.get(arm, {}), num_sessions)
        if rest is None or draft is None or draft.fitted is None:
            return None
        return rest[0] + draft.fitted[0], rest[1] + draft.fitted[1]

    def rest_of(self, choice: Choice, num_sessions: int) -> float | None:
        """Seconds of such a step without the draft's; None while none like it was seen."""
        near = _nearest(self._plain if choice == PLAIN else self._drafted, num_sessions)
        fitted = near.fitted if near and near.num_samples else None
        return fitted[0] + choice.block_length * fitted[1] if fitted else None

    def rest(self, num_sessions: int) -> tuple[float, float] | None:
        """The same of a step with a block, without what is the draft's own; None before any such step."""
        near = _nearest(self._drafted, num_sessions)
        return near.fitted if near else None


def magnitude(num_sessions: int) -> int:
    """1, 2 for 2 and 3, 3 for 4 to 7, ..."""
    return max(num_sessions, 1).bit_length()


def _nearest(lines: dict[int, Line], num_sessions: int) -> Line | None:
    """What was seen with about so many sessions."""
    wanted = magnitude(num_sessions)
    if wanted in lines:
        return lines[wanted]
    nearest = min(lines, key=lambda seen: (abs(seen - wanted), seen), default=None)
    return None if nearest is None else lines[nearest]

"""What the router knows of an arm, a pool at one model digest (pure)."""

from collections import deque
from dataclasses import dataclass
from statistics import median

from specmesh.router.policies.interface import Arm

SMOOTHING = 0.2
"""Weight of the newest block in an arm's recent time."""
ACCEPTANCE_DISCOUNT = 0.99
LATENCIES = 101
SHARE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """What decides whether an arm may draft for a request."""

    arm: Arm
    trusted: bool
    sends_rows: bool

    @property
    def pool(self) -> str:
        """Name of the pool."""
        return self.arm.pool

    @property
    def name(self) -> str:
        """`pool@digest`, digest shortened to 8 characters."""
        return self.arm.name


@dataclass(frozen=True, slots=True)
class DraftScope:
    """Which arms may see a context: the caller's pools, narrowed by the request and by the rule."""

    pools: frozenset[str]
    arms: frozenset[str] | None = None
    """Arm names or bare pools, when the request names them."""
    needs_trust: bool = False
    """Rows of an untrusted arm would have to be believed: BLOCK and TOKEN above temperature 0."""

    def permits(self, arm: ArmFacts) -> bool:
        """Whether this arm may draft for the request."""
        return self.names(arm) and not self.distrusts(arm)

    def names(self, arm: ArmFacts) -> bool:
        """Whether caller and request would have it."""
        return arm.pool in self.pools and (self.arms is None or arm.pool in self.arms or arm.name in self.arms)

    def distrusts(self, arm: ArmFacts) -> bool:
        """Whether its rows would have to be believed, and are not."""
        return self.needs_trust and arm.sends_rows and not arm.trusted


class ArmStats:
    """Running figures of an arm. Time is an argument, in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self.draft_seconds: float | None = None
        """Recent time to a block of `_mean_length` tokens; None before the first one."""
        self._mean_length = 0.0
        self._accepted = 0.0
        self._drafted = 0.0
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._steps = StepCounter()

    def record_time(self, seconds: float, length: int) -> None:
        """A block of `length` tokens took so long; one that was cut took at least so long."""
        self._latencies.append(seconds)
        if self.draft_seconds is None:
            self.draft_seconds, self._mean_length = seconds, float(length)
            return
        self.draft_seconds += SMOOTHING * (seconds - self.draft_seconds)
        self._mean_length += SMOOTHING * (length - self._mean_length)

    def expected_seconds(self, length: int) -> float | None:
        """Time to expect for a block of `length`, by the recent ones; never less than a recent block took."""
        if self.draft_seconds is None:
            return None
        return self.draft_seconds * max(1.0, length / max(self._mean_length, 1.0))

    def record_step(self, accepted: int, drafted: int, now: float) -> None:
        """A step that this arm drafted for."""
        self._accepted = self._accepted * ACCEPTANCE_DISCOUNT + accepted
        self._drafted = self._drafted * ACCEPTANCE_DISCOUNT + drafted
        self._steps.count(now)

    @property
    def acceptance(self) -> float:
        """Accepted / drafted, old steps discounted; 0 before the first one."""
        return self._accepted / self._drafted if self._drafted else 0.0

    @property
    def median_seconds(self) -> float:
        """Median time to a block of the latest ones."""
        return median(self._latencies) if self._latencies else 0.0

    def steps_lately(self, now: float) -> int:
        """Steps of the last minute."""
        return self._steps.lately(now)


class StepCounter:
    """Steps of the last minute, counted by the second."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque(maxlen=SHARE_SECONDS)

    def count(self, now: float) -> None:
        """One step."""
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + 1)
        else:
            self._seconds.append((second, 1))

    def lately(self, now: float) -> int:
        """Steps of the last minute."""
        return sum(steps for second, steps in self._seconds if second > now - SHARE_SECONDS)

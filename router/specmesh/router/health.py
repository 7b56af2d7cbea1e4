"""States of one replica of a draft (pure; time is an argument): who is used, who rests, who is tried again."""

from dataclasses import dataclass

from specmesh.runtime.types import ArmState


@dataclass(frozen=True, slots=True)
class Cooldown:
    """Seconds of the first pause, of the longest one, and how many cut blocks in a row are a failure."""

    first: float
    longest: float
    late_blocks: int


class ReplicaHealth:
    """PROBING -> READY -> COOLING -> PROBING ...; INCOMPATIBLE, QUARANTINED and DRAINING end with the connection.

    Many sessions may meet one fault at once: failures while COOLING are part of the failure that began it.
    The pause doubles with each failure and starts over after a real block in time, not after a probe.
    """

    __slots__ = ("_cooldown", "_failures", "_late", "reason", "retry_at", "state")

    def __init__(self, cooldown: Cooldown) -> None:
        self._cooldown = cooldown
        self._failures = 0
        self._late = 0
        self.state = ArmState.PROBING
        self.reason = "not connected yet"
        self.retry_at = 0.0

    @property
    def ready(self) -> bool:
        """Whether sessions may use it."""
        return self.state is ArmState.READY

    def probe(self) -> None:
        """It is being tried, away from every session."""
        self._enter(ArmState.PROBING, self.reason)

    def recover(self) -> None:
        """A probe went well."""
        self._enter(ArmState.READY, "")

    def on_time(self) -> None:
        """A block of a session was complete by its deadline."""
        self._failures = self._late = 0

    def late(self, now: float) -> None:
        """A block had to be cut at its deadline, with something in it."""
        self._late += 1
        if self._late >= self._cooldown.late_blocks:
            self.fail(now, f"{self._late} blocks in a row were late")

    def fail(self, now: float, reason: str) -> None:
        """Nothing came, the connection broke, or an answer made no sense."""
        if self.state not in (ArmState.READY, ArmState.PROBING):
            return
        # The exponent is bounded: a replica may be away for weeks.
        pause = min(self._cooldown.first * 2 ** min(self._failures, 16), self._cooldown.longest)
        self._failures += 1
        self._late = 0
        self.retry_at = now + pause
        self._enter(ArmState.COOLING, reason)

    def incompatible(self, now: float, reason: str) -> None:
        """It does not fit the target; looked at again after the longest pause, as it may be replaced."""
        self.retry_at = now + self._cooldown.longest
        self._enter(ArmState.INCOMPATIBLE, reason)

    def quarantine(self, now: float, reason: str) -> None:
        """It declared one distribution and sampled another; looked at again as an incompatible one is."""
        self.retry_at = now + self._cooldown.longest
        self._enter(ArmState.QUARANTINED, reason)

    def drain(self) -> None:
        """It asks for no new work."""
        if self.ready:
            self._enter(ArmState.DRAINING, "the replica is draining")

    def disconnected(self, now: float, reason: str) -> None:
        """The connection is gone, and with it what only that process could be blamed for."""
        if self.state is ArmState.DRAINING:
            self._enter(ArmState.READY, "")
        self.fail(now, reason)

    def _enter(self, state: ArmState, reason: str) -> None:
        self.state, self.reason = state, reason

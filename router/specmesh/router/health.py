"""States of one replica of a draft (pure; time is an argument): who is used, who rests, who is tried again."""

from dataclasses import dataclass

from specmesh.runtime.types import ArmState

SILENT_BLOCKS = 2
"""So many blocks in a row of which nothing came by the deadline are a failure; after one a probe decides."""


@dataclass(frozen=True, slots=True)
class Cooldown:
    """Seconds of the first pause, of the longest one and of the longest between two attempts to connect.

    So many cut blocks in a row (`late_blocks`) are a failure.
    """

    first: float
    longest: float
    reconnect: float
    late_blocks: int


class ReplicaHealth:
    """PROBING -> READY -> COOLING -> PROBING ...; DRAINING ends with the connection, INCOMPATIBLE and QUARANTINED
    when a process that fits has introduced itself anew.

    Many sessions may meet one fault at once: failures while COOLING are part of the failure that began it.
    The pause doubles with each failure and starts over after a real block in time, not after a probe. Lost connections
    are counted apart: how long a process was away says nothing of the one that takes its place.
    """

    __slots__ = ("_cooldown", "_failures", "_late", "_losses", "_silent", "_tried_at", "reason", "retry_at", "state")

    def __init__(self, cooldown: Cooldown) -> None:
        self._cooldown = cooldown
        self._failures = 0
        self._losses = 0
        self._late = 0
        self._silent = 0
        self._tried_at = 0.0
        self.state = ArmState.PROBING
        self.reason = "not connected yet"
        self.retry_at = 0.0

    @property
    def ready(self) -> bool:
        """Whether sessions may use it."""
        return self.state is ArmState.READY

    @property
    def num_failures(self) -> int:
        """Since a block was in time, or since this process introduced itself."""
        return self._failures

    def probe(self) -> None:
        """It is being tried, away from every session."""
        self._enter(ArmState.PROBING, self.reason)

    def introduced(self) -> None:
        """A process has introduced itself on a new connection, and is tried."""
        self._failures = self._late = self._silent = 0
        self.probe()

    def recover(self, now: float) -> None:
        """A probe went well."""
        self._tried_at = now
        self._enter(ArmState.READY, "")

    def on_time(self) -> None:
        """A block of a session was complete by its deadline."""
        self._failures = self._losses = self._late = self._silent = 0

    def silent(self, now: float, asked: float) -> None:
        """Nothing had come by the deadline of a block asked for at `asked`.

        The first one may be a moment in which the machine did something else: the replica leaves the sessions, and a
        probe tells at once. Blocks asked for before that probe are part of the same moment.
        """
        if not self.ready or asked < self._tried_at:
            return
        self._silent += 1
        if self._silent >= SILENT_BLOCKS:
            self.fail(now, "nothing arrived by the deadline")
        else:
            self._enter(ArmState.PROBING, "nothing arrived by the deadline")

    def late(self, now: float) -> None:
        """A block had to be cut at its deadline, with something in it."""
        self._late += 1
        if self._late >= self._cooldown.late_blocks:
            self.fail(now, f"{self._late} blocks in a row were late")

    def fail(self, now: float, reason: str) -> None:
        """Nothing came, or an answer made no sense."""
        if self.state not in (ArmState.READY, ArmState.PROBING):
            return
        self.retry_at = now + self._pause(self._failures, self._cooldown.longest)
        self._failures += 1
        self._late = 0
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
        """The connection is gone. What did not fit or was not honest is not forgotten before another try."""
        retry_at = now + self._pause(self._losses, min(self._cooldown.reconnect, self._cooldown.longest))
        self._losses += 1
        if self.state in (ArmState.INCOMPATIBLE, ArmState.QUARANTINED):
            self.retry_at = max(self.retry_at, retry_at)
        else:
            self.retry_at = retry_at
            self._enter(ArmState.COOLING, reason)

    def _pause(self, num_before: int, longest: float) -> float:
        # The exponent is bounded: a replica may be away for weeks.
        return min(self._cooldown.first * 2.0 ** min(num_before, 16), longest)

    def _enter(self, state: ArmState, reason: str) -> None:
        self.state, self.reason = state, reason

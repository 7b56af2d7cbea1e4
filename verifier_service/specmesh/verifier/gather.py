"""How long a tick waits for the sessions of the tick before it. Pure: time is an argument.

Starting at once splits sessions into two cohorts that each pay a whole tick. So a tick waits for sessions that were in
the last one, as long as they usually stay away, if that is at most a fifth of a tick; never for others, and a session
that is alone is never waited for.
"""

from collections.abc import Iterable

from specmesh.verifier.session import SessionKey

MAX_WAIT_SHARE = 0.2
"""Of a tick, at most."""
_WEIGHT = 0.1
"""Of the newest sample in the running means."""
_NUM_DEVIATIONS = 2.0


class Gather:
    """Learns how long ticks last and how long sessions stay away between two of their entries."""

    def __init__(self) -> None:
        self._left_ns: dict[SessionKey, int] = {}
        self._awaited: set[SessionKey] = set()
        self._ended_ns = 0
        self._tick_ns = 0.0
        self._away_ns: float | None = None
        self._deviation_ns = 0.0

    def tick_ended(self, answered: Iterable[SessionKey], started_ns: int, ended_ns: int) -> None:
        """The sessions `answered` may come back now."""
        self._awaited = set(answered)
        self._left_ns.update(dict.fromkeys(self._awaited, ended_ns))
        self._ended_ns = ended_ns
        duration = float(ended_ns - started_ns)
        self._tick_ns += _WEIGHT * (duration - self._tick_ns) if self._tick_ns else duration

    def returned(self, key: SessionKey, arrived_ns: int) -> None:
        """A session's next entry has come: at `arrived_ns`, which may have been during the last tick."""
        self._awaited.discard(key)
        left_ns = self._left_ns.pop(key, None)
        if left_ns is not None:
            # A client that pauses for seconds must not make the others look slow.
            self._learn(min(float(arrived_ns - left_ns), self._tick_ns))

    def _learn(self, away_ns: float) -> None:
        if self._away_ns is None:
            self._away_ns = self._deviation_ns = away_ns
        error = away_ns - self._away_ns
        self._away_ns += _WEIGHT * error
        self._deviation_ns += _WEIGHT * (abs(error) - self._deviation_ns)

    def gone(self, key: SessionKey) -> None:
        """A session has ended."""
        self._awaited.discard(key)
        self._left_ns.pop(key, None)

    def wait_until(self, now_ns: int) -> int | None:
        """Until when the next tick, for which there is work, should wait; None: not at all."""
        if not self._awaited or self._away_ns is None:
            return None
        bound_ns = MAX_WAIT_SHARE * self._tick_ns
        if self._away_ns > bound_ns:
            return None
        wait_ns = min(self._away_ns + _NUM_DEVIATIONS * self._deviation_ns, bound_ns)
        until_ns = self._ended_ns + int(wait_ns)
        return until_ns if until_ns > now_ns else None

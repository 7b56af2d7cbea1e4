"""How long a tick waits for the sessions of the tick before it. Pure: time is an argument.

Starting at once splits sessions into two cohorts that each pay a whole tick. So a tick waits for sessions that were in
the last one, for as many of them as it pays to wait for: whoever then takes part is spared a tick, and all that are
here or to come wait. Each session is taken to stay away as long as it usually does. Never for others, never for a
session that is alone, and at most half a tick.
"""

from collections.abc import Iterable

from specmesh.verifier.session import SessionKey

MAX_WAIT_SHARE = 0.5
"""Of a tick, at most."""
_WEIGHT = 0.1
"""Of the newest sample in the running means."""
_NUM_DEVIATIONS = 2.0


class Gather:
    """Learns how long ticks last and how long each session stays away between two of its entries."""

    def __init__(self) -> None:
        self._left_ns: dict[SessionKey, int] = {}
        self._away_ns: dict[SessionKey, float] = {}
        self._usual_ns = 0.0
        self._deviation_ns = 0.0
        self._awaited: set[SessionKey] = set()
        self._chosen = False
        self._until_ns = 0
        self._ended_ns = 0
        self._tick_ns = 0.0

    def tick_ended(self, answered: Iterable[SessionKey], started_ns: int, ended_ns: int) -> None:
        """The sessions `answered` may come back now."""
        self._awaited = set(answered)
        self._chosen = False
        self._left_ns.update(dict.fromkeys(self._awaited, ended_ns))
        self._ended_ns = ended_ns
        duration = float(ended_ns - started_ns)
        self._tick_ns += _WEIGHT * (duration - self._tick_ns) if self._tick_ns else duration

    def returned(self, key: SessionKey, arrived_ns: int) -> None:
        """A session's next entry has come: at `arrived_ns`, which may have been during the last tick."""
        self._awaited.discard(key)
        left_ns = self._left_ns.pop(key, None)
        if left_ns is not None:
            # A client that pauses for seconds is soon waited for again.
            self._learn(key, min(float(arrived_ns - left_ns), self._tick_ns))

    def _learn(self, key: SessionKey, away_ns: float) -> None:
        if not self._usual_ns:
            self._usual_ns = away_ns
        before_ns = self._away_ns.get(key, self._usual_ns)
        self._away_ns[key] = before_ns + _WEIGHT * (away_ns - before_ns)
        self._deviation_ns += _WEIGHT * (abs(away_ns - before_ns) - self._deviation_ns)
        self._usual_ns += _WEIGHT * (away_ns - self._usual_ns)

    def gone(self, key: SessionKey) -> None:
        """A session has ended."""
        self._awaited.discard(key)
        self._left_ns.pop(key, None)
        self._away_ns.pop(key, None)

    def wait_until(self, now_ns: int, num_ready: int) -> int | None:
        """Until when the next tick should wait; None: not at all. `num_ready` sessions have sent their entries for it.

        Decided when it is first asked after a tick; then it is over when those waited for are back, or the time is.
        """
        if not self._awaited or not self._usual_ns:
            return None
        if not self._chosen:
            self._choose(now_ns, num_ready)
        return self._until_ns if self._awaited and self._until_ns > now_ns else None

    def _choose(self, now_ns: int, num_ready: int) -> None:
        """Wait for the first k of those away: k are spared a tick, and all wait until the last of the k is back."""
        self._chosen = True
        back_ns = self._ended_ns - now_ns + _NUM_DEVIATIONS * self._deviation_ns
        waits = {key: back_ns + self._away_ns.get(key, self._usual_ns) for key in self._awaited}
        bound_ns = MAX_WAIT_SHARE * self._tick_ns
        possible = sorted(wait_ns for wait_ns in waits.values() if 0 < wait_ns <= bound_ns)
        num_waiting = num_ready + len(possible)
        best_ns = most_spared = 0.0
        for count, wait_ns in enumerate(possible, start=1):
            if (spared := count * self._tick_ns - num_waiting * wait_ns) > most_spared:
                most_spared, best_ns = spared, wait_ns
        self._awaited = {key for key, wait_ns in waits.items() if 0 < wait_ns <= best_ns}
        self._until_ns = now_ns + int(best_ns)

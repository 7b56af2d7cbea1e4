"""How long a tick waits for the sessions of the tick before it."""

from verifier_parts import MS

from specmesh.verifier.gather import Gather
from specmesh.verifier.session import SessionKey

A, B, C = ("p", 1), ("p", 2), ("p", 3)
TICK = 10 * MS


class Rounds:
    """Ticks of 10 ms, one after the other."""

    def __init__(self) -> None:
        self.gather = Gather()
        self.now = 0

    def tick(self, *keys: SessionKey) -> None:
        self.gather.tick_ended(keys, self.now, self.now + TICK)
        self.now += TICK

    def back(self, key: SessionKey, away: int) -> None:
        self.gather.returned(key, self.now + away)

    def wait(self, after: int = 0) -> int | None:
        """How long from the end of the tick, asked `after` that."""
        until = self.gather.wait_until(self.now + after)
        return None if until is None else until - self.now

    def learn(self, away: int, rounds: int = 50) -> None:
        for _ in range(rounds):
            self.tick(A, B)
            self.back(A, away)
            self.back(B, away)
            self.now += away


def test_a_session_that_is_usually_back_soon_is_waited_for() -> None:
    rounds = Rounds()
    rounds.learn(MS)
    rounds.tick(A, B)
    rounds.back(A, MS // 2)
    wait = rounds.wait(MS // 2)
    assert wait is not None
    assert MS // 2 < wait <= TICK // 5


def test_nothing_is_waited_for_when_all_are_back_or_gone() -> None:
    rounds = Rounds()
    rounds.learn(MS)
    rounds.tick(A, B)
    rounds.back(A, MS)
    rounds.gather.gone(B)
    assert rounds.wait(MS) is None


def test_a_session_alone_is_never_waited_for() -> None:
    rounds = Rounds()
    for away in (MS, MS // 4) * 25:
        rounds.tick(A)
        rounds.back(A, away)
        assert rounds.wait(away) is None
        rounds.now += away


def test_who_stays_away_longer_than_a_fifth_of_a_tick_is_not_waited_for() -> None:
    rounds = Rounds()
    rounds.learn(3 * MS)
    rounds.tick(A, B)
    rounds.back(A, MS)
    assert rounds.wait(MS) is None


def test_the_wait_is_at_most_a_fifth_of_a_tick() -> None:
    rounds = Rounds()
    for away in (MS // 2, 3 * MS) * 25:
        rounds.learn(away, rounds=1)
    rounds.tick(A, B)
    rounds.back(A, 0)
    assert rounds.wait() == TICK // 5


def test_the_wait_ends() -> None:
    rounds = Rounds()
    rounds.learn(MS)
    rounds.tick(A, B)
    rounds.back(A, MS)
    assert rounds.wait(TICK // 5 + 1) is None


def test_only_the_last_tick_is_waited_for() -> None:
    rounds = Rounds()
    rounds.learn(MS)
    rounds.tick(A, B)
    rounds.tick(C)
    rounds.back(C, MS)
    assert rounds.wait(MS) is None


def test_one_long_pause_does_not_end_the_waiting() -> None:
    rounds = Rounds()
    rounds.learn(MS // 10)
    rounds.tick(A, B)
    rounds.back(A, MS // 10)
    rounds.back(B, 1000 * TICK)
    rounds.learn(MS // 10, rounds=20)
    rounds.tick(A, B)
    rounds.back(A, 0)
    assert rounds.wait() is not None

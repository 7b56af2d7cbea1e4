"""Drafts that do as a test says: with faults, or a tick at a time."""

import threading
from collections.abc import Sequence

from draft_peers import law_drafter, random_law

from specmesh.draft.drafter import Advance, Turn
from specmesh.draft.faulty import FaultyDrafter, FaultySettings

LAW = random_law(5, seed=23)
CONTEXT = [3, 1, 4, 1]


def faulty(**faults: object) -> FaultyDrafter:
    """The law's draft in a thread, with faults."""
    return FaultyDrafter(law_drafter(LAW), FaultySettings.model_validate({"kind": "table"} | faults))


class SleepyDrafter:
    """The law's draft, in a thread, each tick of which waits until it is let go."""

    inline = False

    def __init__(self) -> None:
        self._honest = law_drafter(LAW)
        self.info = self._honest.info
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.num_ticks = 0

    def advance(self, turns: Sequence[Turn]) -> list[Advance]:
        self.entered.release()
        assert self.go.acquire(timeout=20)
        self.num_ticks += 1
        return self._honest.advance(turns)

    def truncate(self, session_id: int, length: int) -> None:
        self._honest.truncate(session_id, length)

    def release(self, session_id: int) -> None:
        self._honest.release(session_id)

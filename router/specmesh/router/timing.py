"""Where a step's time went (pure). Parts come from several clocks; they are fitted so that they add up."""

import time
from collections.abc import Callable
from typing import NamedTuple

from specmesh.router.block import DraftWork
from specmesh.router.policies.interface import StepSeconds
from specmesh.runtime.types import VerifyTiming


class StepNanoseconds(NamedTuple):
    """Time a step spent waiting, by part; `router` is what is left, so the parts add up exactly."""

    total: int
    draft: int
    network: int
    queue: int
    forward: int
    verify: int
    router: int

    def seconds(self) -> StepSeconds:
        """As policies take it."""
        return StepSeconds(*[part / 1e9 for part in self])

    def parts(self) -> dict[str, float]:
        """Seconds by part, by name."""
        return {part: getattr(self, part) / 1e9 for part in PARTS}


PARTS = StepNanoseconds._fields[1:]
"""All but the total, which they add up to."""


def split_time(
    *, total: int, draft_wait: int, work: DraftWork, round_trip: int, timing: VerifyTiming
) -> StepNanoseconds:
    """Split `total` nanoseconds, of which the router waited `draft_wait` for a block and `round_trip` for its outcome.

    What a service did not spend itself was on the wire. A block that was there before it was asked for took of this
    step what it waited for an answer; its drafting overlaps with an earlier one. `queue` is all of the verifier that is
    neither forward pass nor kernel. A peer's figures never exceed the wait they explain.
    """
    at_draft = min(_seen_by_step(work, draft_wait), draft_wait)
    at_verifier = min(timing.total_ns, round_trip)
    forward = min(timing.forward_ns, at_verifier)
    verify = min(timing.verify_ns, at_verifier - forward)
    return StepNanoseconds(
        total=total,
        draft=at_draft,
        network=draft_wait - at_draft + round_trip - at_verifier,
        queue=at_verifier - forward - verify,
        forward=forward,
        verify=verify,
        router=total - draft_wait - round_trip,
    )


def _seen_by_step(work: DraftWork, draft_wait: int) -> int:
    """Nanoseconds that the draft says it took of the wait; of a block that was cut nothing is known."""
    if work.predicted:
        return work.queue_ns
    return work.queue_ns + work.compute_ns if work.compute_ns else draft_wait


class Stopwatch:
    """Measures one step. Use `with watch.round_trip:` around the wait for the verifier."""

    __slots__ = ("_clock", "_started", "round_trip")

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """`clock` gives nanoseconds."""
        self._clock = clock
        self._started = clock()
        self.round_trip = Span(clock)

    def split(self, draft_wait: int, work: DraftWork, timing: VerifyTiming) -> StepNanoseconds:
        """The time since the start, by part."""
        return split_time(
            total=self._clock() - self._started,
            draft_wait=draft_wait,
            work=work,
            round_trip=self.round_trip.nanoseconds,
            timing=timing,
        )


class Span:
    """Nanoseconds spent inside a `with`."""

    __slots__ = ("_clock", "_entered", "nanoseconds")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._entered = 0
        self.nanoseconds = 0

    def __enter__(self) -> None:
        self._entered = self._clock()

    def __exit__(self, *exc_info: object) -> None:
        self.nanoseconds = self._clock() - self._entered

"""Tokens of each caller: a bucket that its rate refills, and that holds a minute's worth."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from specmesh.router.callers import Caller
from specmesh.runtime.errors import QuotaExceeded

MINUTE = 60.0
KEPT_CALLERS = 1024
"""Buckets of callers that were idle for a minute are full, and forgotten beyond so many."""


@dataclass(slots=True)
class _Bucket:
    """`level` tokens were there at the moment `at`; below 0 the caller waits until they are made up for."""

    level: float
    at: float


@dataclass(slots=True)
class Held:
    """What a request has taken in advance. `used` says at its end what it took in fact."""

    used: Callable[[], int] = lambda: 0


class TokenQuota:
    """A request takes all that it may need at once, into debt if need be, and gives back what it did not use.

    So requests at the same time cannot overdraw together, and one that is larger than the bucket is served all the
    same. A caller in debt is refused and told for how long.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    @contextmanager
    def hold(self, caller: Caller, num_tokens: int) -> Iterator[Held]:
        """Take `num_tokens`, prompt and longest output, while a request lasts. Raises `QuotaExceeded`."""
        held = Held()
        if not caller.max_tokens_per_minute:
            yield held
            return
        bucket = self._refilled(caller)
        if bucket.level <= 0:
            rate = caller.max_tokens_per_minute / MINUTE
            message = f"limits.max_tokens_per_caller_minute: {caller.max_tokens_per_minute} tokens a minute are used up"
            raise QuotaExceeded(message, retry_after=(1 - bucket.level) / rate)
        bucket.level -= num_tokens
        try:
            yield held
        finally:
            bucket = self._refilled(caller)
            bucket.level = min(bucket.level + num_tokens - held.used(), caller.max_tokens_per_minute)

    def _refilled(self, caller: Caller) -> _Bucket:
        now, limit = self._clock(), caller.max_tokens_per_minute
        bucket = self._buckets.get(caller.name)
        if bucket is None:
            self._forget_idle(now)
            bucket = self._buckets[caller.name] = _Bucket(limit, now)
        bucket.level = min(bucket.level + (now - bucket.at) * limit / MINUTE, limit)
        bucket.at = now
        return bucket

    def _forget_idle(self, now: float) -> None:
        """A bucket untouched for a minute and not in debt is full: the same as none."""
        if len(self._buckets) >= KEPT_CALLERS:
            idle = [name for name, each in self._buckets.items() if each.level >= 0 and now - each.at >= MINUTE]
            for name in idle:
                del self._buckets[name]

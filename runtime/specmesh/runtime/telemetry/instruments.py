"""Counters, histograms and gauges as plain numbers: recording one costs a fraction of a microsecond.

The exporters read them; nothing here knows of any. Each series has one writer, its service's event loop, but that of
what an exporter drops, which has a lock. What happens often is only noted where it happens, in an engine's thread too,
and recorded on the loop: before anything is collected, so that exporters miss nothing, and at the latest when
`KEEP_UP_SECONDS` have passed.
"""

import asyncio
import logging
import time
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from specmesh.runtime.telemetry.names import Metric

_log = logging.getLogger(__name__)

T = TypeVar("T")
Values = tuple[str, ...]
"""Of a metric's attributes, in their order."""
Observe = Callable[[], Iterable[tuple[Values, float]]]
AT_A_TIME = 128
"""What is worked off in one go: a fraction of a millisecond."""
KEEP_UP_SECONDS = 0.5
"""How old a note gets before it is worked off though nobody collects."""
MOST_NOTED = 1 << 15
"""Notes of one kind that wait: seconds of the busiest service, and tens of megabytes at most."""


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One measured value, and the span in which it was measured."""

    value: float
    trace_id: int
    span_id: int
    time_ns: int


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Never less than 0."""
        self.value += amount


class Distribution:
    """One series of a histogram."""

    __slots__ = ("_bounds", "_bounds_ns", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._bounds_ns = [round(bound * 1e9) for bound in bounds]
        self.counts = [0] * (len(bounds) + 1)
        """By bucket, not accumulated; the last one has no upper bound."""
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The latest of each bucket."""

    def record(self, value: float) -> None:
        """One value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def record_all(self, values: Iterable[float]) -> None:
        """Many values, for a fraction of what each would take alone."""
        ordered = sorted(values)
        self._count(ordered, self._bounds)
        self.sum += sum(ordered)

    def record_nanoseconds(self, times: Iterable[int]) -> None:
        """Many values of a histogram whose unit is the second."""
        ordered = sorted(times)
        self._count(ordered, self._bounds_ns)
        self.sum += sum(ordered) / 1e9

    def _count(self, ordered: Sequence[float], bounds: Sequence[float]) -> None:
        """Of sorted values only the bounds have to be looked for."""
        done, number = 0, len(ordered)
        for bucket, bound in enumerate(bounds):
            if done == number:
                return
            upto = bisect_right(ordered, bound, done)
            self.counts[bucket] += upto - done
            done = upto
        self.counts[-1] += number - done

    def link(self, value: float, trace_id: int, span_id: int) -> None:
        """Say in which span a value was recorded."""
        self.exemplars[bisect_left(self._bounds, value)] = Exemplar(value, trace_id, span_id, time.time_ns())


class CounterFamily:
    """All series of a counter."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.series: dict[Values, Count] = {}

    def of(self, *values: str) -> Count:
        """The series with these attributes."""
        series = self.series.get(values)
        return self.series.setdefault(values, Count()) if series is None else series


class HistogramFamily:
    """All series of a histogram."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.series: dict[Values, Distribution] = {}

    def of(self, *values: str) -> Distribution:
        """The series with these attributes."""
        series = self.series.get(values)
        return self.series.setdefault(values, Distribution(self.metric.buckets)) if series is None else series


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a counter or a gauge."""

    values: Values
    value: float


@dataclass(frozen=True, slots=True)
class HistogramPoint:
    """A copy of a `Distribution`."""

    values: Values
    counts: tuple[int, ...]
    sum: float
    exemplars: dict[int, Exemplar]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric at one moment."""

    metric: Metric
    points: Sequence[Point | HistogramPoint]


class Deferred(Generic[T]):
    """What there is to record of each step, noted where it happens and worked off many at a time on the event loop.

    Of many steps the figures of one kind are added together, in loops that are not Python's, for a fraction of the
    work. And in the middle of a step all that recording needs has left the processor's caches.
    """

    def __init__(self, registry: "Registry", record: Callable[[list[T]], None]) -> None:
        """`record` takes up to `AT_A_TIME` of what is noted, soon and before anything is collected."""
        # The bound is the queue's own, as counting what it drops would take as long as all else that noting does.
        self._noted: deque[T] = deque(maxlen=MOST_NOTED)
        self._record = record
        self.note = self._noted.append
        """For one thread, whichever. When `MOST_NOTED` wait, the oldest is lost."""
        registry.defer(self.work_off)

    def work_off(self) -> bool:
        """Record what was noted first, and say in the log if some may be lost. Returns whether there is more."""
        waiting = len(self._noted)
        if waiting == MOST_NOTED:
            _log.warning("as much was noted as can wait: metrics may miss some of it", extra={"most": MOST_NOTED})
        take = self._noted.popleft
        noted = [take() for _ in range(min(waiting, AT_A_TIME))]
        if noted:
            self._record(noted)
        return bool(self._noted)


class Tally(Generic[T]):
    """How many there were of each kind, looked at when they are collected. Belongs to the event loop."""

    def __init__(self, registry: "Registry", count: Callable[[T, int], None]) -> None:
        """`count` is told of each kind, and how many of it, before anything is collected."""
        self._numbers: Counter[T] = Counter()
        self._count = count
        self.add = self._numbers.update
        """Of an iterable of kinds."""
        registry.before_collecting(self._pass_on)

    def _pass_on(self) -> None:
        for kind, number in self._numbers.items():
            self._count(kind, number)
        self._numbers.clear()


class Registry:
    """What a service measures. `collect` runs on the event loop, which owns what the gauges look at."""

    def __init__(self) -> None:
        self.start_ns = time.time_ns()
        self._counters: dict[str, CounterFamily] = {}
        self._histograms: dict[str, HistogramFamily] = {}
        self._observed: dict[str, tuple[Metric, list[Observe]]] = {}
        self._deferred: list[Callable[[], bool]] = []
        self._before: list[Callable[[], None]] = []

    def counter(self, metric: Metric) -> CounterFamily:
        """The same one for the same metric."""
        return self._counters.setdefault(metric.name, CounterFamily(metric))

    def histogram(self, metric: Metric) -> HistogramFamily:
        """The same one for the same metric."""
        return self._histograms.setdefault(metric.name, HistogramFamily(metric))

    def observe(self, metric: Metric, values: Observe) -> None:
        """A gauge, or a counter that somebody else keeps: read when it is collected."""
        self._observed.setdefault(metric.name, (metric, []))[1].append(values)

    def defer(self, work_off: Callable[[], bool]) -> None:
        """What is to be worked off, a piece at a time; it says whether there is more."""
        self._deferred.append(work_off)

    def before_collecting(self, do: Callable[[], None]) -> None:
        """What has to be done before values are read, when all that was deferred is worked off."""
        self._before.append(do)

    def work_off(self) -> None:
        """All that is deferred."""
        for work_off in self._deferred:
            while _more(work_off):
                pass

    async def keep_up(self) -> None:
        """Work off what is deferred, until cancelled; between the pieces others have their turn."""
        while True:
            await asyncio.sleep(KEEP_UP_SECONDS)
            for work_off in self._deferred:
                while _more(work_off):  # noqa: ASYNC110  it works, and lets others work
                    await asyncio.sleep(0)

    def collect(self) -> list[Family]:
        """Everything measured, copied."""
        self.work_off()
        for do in self._before:
            do()
        families = [_copy_counter(family) for family in self._counters.values()]
        families += [_copy_histogram(family) for family in self._histograms.values()]
        for metric, observers in self._observed.values():
            points = [Point(values, value) for observe in observers for values, value in observe()]
            families.append(Family(metric, points))
        return families


def _more(work_off: Callable[[], bool]) -> bool:
    """One piece. If it cannot be recorded it is lost, and the rest waits for the next time: all else goes on."""
    try:
        return work_off()
    except Exception:  # noqa: BLE001  whatever it is: nobody would hear of it, and notes would pile up
        _log.exception("cannot record what was noted; metrics miss some of it")
        return False


def _copy_counter(family: CounterFamily) -> Family:
    return Family(family.metric, [Point(values, series.value) for values, series in list(family.series.items())])


def _copy_histogram(family: HistogramFamily) -> Family:
    points = [
        HistogramPoint(values, tuple(series.counts), series.sum, dict(series.exemplars))
        for values, series in list(family.series.items())
    ]
    return Family(family.metric, points)

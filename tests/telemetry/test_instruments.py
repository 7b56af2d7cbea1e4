"""Counters, histograms and gauges, and how they look in OTLP and to Prometheus."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

from specmesh.runtime.telemetry.instruments import (
    AT_A_TIME,
    MOST_NOTED,
    Deferred,
    Distribution,
    HistogramPoint,
    Point,
    Registry,
    Tally,
)
from specmesh.runtime.telemetry.names import ARM_DEMAND, KV_BLOCKS, STEP_DURATION, VERIFIER_BATCH
from specmesh.runtime.telemetry.otlp_messages import metrics_request
from specmesh.runtime.telemetry.prometheus import FamilyCollector


def measured() -> Registry:
    registry = Registry()
    registry.counter(ARM_DEMAND).of("code").add()
    registry.counter(ARM_DEMAND).of("code").add(2)
    registry.counter(ARM_DEMAND).of("prose").add()
    steps = registry.histogram(STEP_DURATION).of("total")
    for seconds in (0.0001, 0.00011, 0.7, 99.0):
        steps.record(seconds)
    steps.link(0.7, trace_id=0xAB, span_id=0xCD)
    registry.histogram(VERIFIER_BATCH).of().record(3)
    registry.observe(KV_BLOCKS, lambda: [(("used",), 3.0), (("free",), 5.0)])
    return registry


def test_values_collect_by_series() -> None:
    families = {family.metric: family.points for family in measured().collect()}
    assert list(families[ARM_DEMAND]) == [Point(("code",), 3.0), Point(("prose",), 1.0)]
    assert list(families[KV_BLOCKS]) == [Point(("used",), 3.0), Point(("free",), 5.0)]
    [point] = families[STEP_DURATION]
    assert isinstance(point, HistogramPoint)
    by_bound = dict(zip((*STEP_DURATION.buckets, float("inf")), point.counts, strict=True))
    assert {bound: count for bound, count in by_bound.items() if count} == {
        0.0001: 1,  # a bound belongs to its bucket
        0.00025: 1,
        1.0: 1,
        float("inf"): 1,
    }
    assert abs(point.sum - 99.70021) < 1e-9


def test_a_collected_value_does_not_change_afterwards() -> None:
    registry = measured()
    before = registry.collect()
    registry.histogram(STEP_DURATION).of("total").record(1.0)
    registry.counter(ARM_DEMAND).of("code").add()
    [point] = next(family.points for family in before if family.metric is STEP_DURATION)
    assert isinstance(point, HistogramPoint)
    assert sum(point.counts) == 4


NANOSECONDS = st.sampled_from([round(bound * 1e9) for bound in STEP_DURATION.buckets]) | st.integers(0, 10**11)


@given(st.lists(NANOSECONDS))
def test_many_values_are_recorded_as_if_each_came_alone(times: list[int]) -> None:
    """Also those that lie on a bound, which belong to its bucket."""
    alone, together, seconds = (Distribution(STEP_DURATION.buckets) for _ in range(3))
    for part in (times[:3], times[3:]):
        together.record_nanoseconds(part)
        seconds.record_all([each / 1e9 for each in part])
    for each in times:
        alone.record(each / 1e9)
    assert together.counts == seconds.counts == alone.counts
    assert together.sum == pytest.approx(alone.sum)
    assert seconds.sum == pytest.approx(alone.sum)


def test_kinds_are_passed_on_with_their_numbers_once() -> None:
    registry = Registry()
    demand = registry.counter(ARM_DEMAND)
    noted: Deferred[str] = Deferred(registry, lambda pools: kinds.add(pools))
    kinds: Tally[str] = Tally(registry, lambda pool, number: demand.of(pool).add(number))
    for pool in ("code", "prose", "code"):
        noted.note(pool)
    for _ in range(2):
        [family] = registry.collect()
        assert list(family.points) == [Point(("code",), 2.0), Point(("prose",), 1.0)]


def test_what_is_deferred_is_recorded_by_the_time_that_it_is_collected() -> None:
    registry = Registry()
    demand = registry.counter(ARM_DEMAND).of("code")
    pieces: list[int] = []

    def record(amounts: list[float]) -> None:
        pieces.append(len(amounts))
        demand.add(sum(amounts))

    noted: Deferred[float] = Deferred(registry, record)
    for _ in range(2 * AT_A_TIME + 1):
        noted.note(2.0)
    assert demand.value == 0.0
    [family] = registry.collect()
    assert list(family.points) == [Point(("code",), 4.0 * AT_A_TIME + 2.0)]
    assert pieces == [AT_A_TIME, AT_A_TIME, 1]


async def test_what_is_deferred_is_worked_off_though_nobody_collects() -> None:
    """In pieces, between which others have their turn."""
    registry = Registry()
    demand = registry.counter(ARM_DEMAND).of("code")
    turns: list[float] = []
    noted: Deferred[float] = Deferred(registry, lambda amounts: demand.add(sum(amounts)))
    for _ in range(3 * AT_A_TIME):
        noted.note(1.0)
    keeping_up = asyncio.create_task(registry.keep_up())
    async with asyncio.timeout(20):
        while demand.value < 3 * AT_A_TIME:
            await asyncio.sleep(0)
            turns += [demand.value] if demand.value not in turns else []
    keeping_up.cancel()
    assert turns == [0.0, AT_A_TIME, 2 * AT_A_TIME, 3 * AT_A_TIME]


async def test_a_record_that_fails_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the work on what is noted beside it, nor on what is noted later."""
    registry = Registry()
    recorded: asyncio.Queue[list[int]] = asyncio.Queue()

    def record(numbers: list[int]) -> None:
        if 1 in numbers:
            raise ValueError("no such series")
        recorded.put_nowait(numbers)

    first: Deferred[int] = Deferred(registry, record)
    second: Deferred[int] = Deferred(registry, recorded.put_nowait)
    keeping_up = asyncio.create_task(registry.keep_up())
    async with asyncio.timeout(20):
        first.note(1)
        second.note(2)
        assert await recorded.get() == [2]
        first.note(3)
        assert await recorded.get() == [3]
    first.note(1)
    registry.collect()
    assert not keeping_up.done()
    keeping_up.cancel()
    assert ["no such series" in (each.exc_text or "") for each in caplog.records] == [True, True]


def test_what_nobody_works_off_is_bounded_and_its_loss_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    recorded: list[int] = []
    noted: Deferred[int] = Deferred(registry, recorded.extend)
    for number in range(MOST_NOTED - 1):
        noted.note(number)
    registry.work_off()
    assert (recorded, caplog.records) == ([*range(MOST_NOTED - 1)], [])
    recorded.clear()
    for number in range(MOST_NOTED + 5):
        noted.note(number)
    registry.work_off()
    assert recorded == [*range(5, MOST_NOTED + 5)]
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_what_an_engines_thread_notes_while_others_collect_is_recorded_once() -> None:
    registry = Registry()
    demand = registry.counter(ARM_DEMAND).of("code")
    noted: Deferred[float] = Deferred(registry, lambda amounts: demand.add(sum(amounts)))

    def note() -> None:
        for _ in range(30_000):
            noted.note(1.0)

    thread = threading.Thread(target=note)
    thread.start()
    while thread.is_alive():
        registry.collect()
    registry.collect()
    assert demand.value == 30_000.0


def test_otlp_has_names_units_buckets_and_exemplars() -> None:
    request = metrics_request(measured().collect(), {"service.name": "specmesh-router"}, start_ns=5)
    [resource] = request.resource_metrics
    assert resource.resource.attributes[0].value.string_value == "specmesh-router"
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    assert metrics[ARM_DEMAND.name].sum.is_monotonic
    assert [point.as_double for point in metrics[ARM_DEMAND.name].sum.data_points] == [3.0, 1.0]
    assert metrics[STEP_DURATION.name].unit == "s"
    [steps] = metrics[STEP_DURATION.name].histogram.data_points
    assert steps.count == 4
    assert tuple(steps.explicit_bounds) == STEP_DURATION.buckets
    assert len(steps.bucket_counts) == len(steps.explicit_bounds) + 1
    assert steps.exemplars[0].trace_id == (0xAB).to_bytes(16, "big")
    assert steps.start_time_unix_nano == 5
    assert [point.as_double for point in metrics[KV_BLOCKS.name].gauge.data_points] == [3.0, 5.0]


def test_prometheus_has_totals_accumulated_buckets_and_exemplars() -> None:
    registry = CollectorRegistry()
    registry.register(FamilyCollector(measured().collect, {"service.name": "specmesh-router"}))
    text = generate_latest(registry).decode()
    assert 'specmesh_arm_demand_total{specmesh_pool="code"} 3.0' in text
    assert 'specmesh_verifier_kv_blocks{specmesh_state="free"} 5.0' in text
    assert 'specmesh_step_duration_seconds_bucket{le="0.00025",specmesh_part="total"} 2.0' in text
    assert 'specmesh_step_duration_seconds_count{specmesh_part="total"} 4.0' in text
    assert 'specmesh_verifier_batch_size_bucket{le="4.0"} 1.0' in text
    assert f'trace_id="{0xAB:032x}"' in text
    assert 'target_info{service_name="specmesh-router"} 1.0' in text

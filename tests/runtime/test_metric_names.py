"""The table of names, by the rules of those who read it."""

import re
from pathlib import Path

import pytest

from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.names import (
    ARM_DEMAND,
    DEVICE_TIME,
    METRICS,
    POOL,
    SPANS,
    STEP_DURATION,
    VERIFIER_QUEUE,
    Metric,
    prometheus_label,
)

ROOFS = ("specmesh.", "gen_ai.server.", "rpc.server.")


def test_names_are_unique_lower_case_and_under_known_roofs() -> None:
    found = [metric.name for metric in METRICS]
    assert len(set(found)) == len(found)
    assert all(name.startswith(ROOFS) and re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name) for name in found)
    assert all(name.startswith("specmesh.") for name in SPANS)


def test_every_metric_of_the_module_is_in_the_table() -> None:
    declared = [value for value in vars(names).values() if isinstance(value, Metric)]
    assert declared == list(METRICS)


def test_every_metric_says_unit_meaning_and_what_its_series_differ_by() -> None:
    for metric in METRICS:
        assert metric.unit, metric.name
        assert metric.meaning, metric.name
        assert len(set(metric.attributes)) == len(metric.attributes), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name


def test_prometheus_sees_counters_as_totals_units_in_words_and_no_dots() -> None:
    assert ARM_DEMAND.prometheus == "specmesh_arm_demand_total"
    assert DEVICE_TIME.prometheus == "specmesh_device_time_seconds_total"
    assert STEP_DURATION.prometheus == "specmesh_step_duration_seconds"
    assert VERIFIER_QUEUE.prometheus == "specmesh_verifier_queue"
    assert prometheus_label(POOL) == "specmesh_pool"
    assert len({metric.prometheus for metric in METRICS}) == len(METRICS)
    with pytest.raises(ValueError, match="no name for the unit"):
        _ = Metric("specmesh.x", "gauge", "kg", "weight").prometheus


def test_every_kind_of_metric_has_a_query() -> None:
    assert ARM_DEMAND.query == "sum by (specmesh_pool) (rate(specmesh_arm_demand_total[5m]))"
    assert VERIFIER_QUEUE.query == "sum(specmesh_verifier_queue)"
    assert STEP_DURATION.query == (
        "histogram_quantile(0.95, sum by (le, specmesh_part) (rate(specmesh_step_duration_seconds_bucket[5m])))"
    )


def test_the_documentation_has_the_same_table() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "observability.md").read_text()
    rows = [line for line in text.splitlines() if re.match(r"\| `[a-z_.]+` \| (counter|gauge|histogram) \|", line)]
    attributes = [", ".join(f"`{attribute}`" for attribute in metric.attributes) for metric in METRICS]
    assert rows == [
        f"| `{metric.name}` | {metric.kind} | {metric.unit} | {names_of} | {metric.meaning} |"
        for metric, names_of in zip(METRICS, attributes, strict=True)
    ]

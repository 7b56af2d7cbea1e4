"""The table of names, by the rules of those who read it."""

import re

import pytest

from specmesh.runtime.telemetry.names import ARM_DEMAND, METRICS, POOL, VERIFIER_QUEUE, Metric, prometheus_label


def test_names_are_unique_lower_case_and_under_one_roof() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"specmesh(\.[a-z_]+)+", name) for name in names)
    assert all(metric.meaning and metric.unit for metric in METRICS)


def test_prometheus_sees_counters_as_totals_and_no_dots() -> None:
    assert ARM_DEMAND.prometheus == "specmesh_arm_demand_total"
    assert VERIFIER_QUEUE.prometheus == "specmesh_verifier_queue"
    assert prometheus_label(POOL) == "specmesh_pool"
    with pytest.raises(ValueError, match="would be a part of its name"):
        _ = Metric("specmesh.x", "gauge", "s", "seconds").prometheus

"""The dashboard and the alerts that are shipped: only names that exist, and data from a mesh that runs."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mesh_calls import generate, refused, request
from telemetry_parts import ROOT, Prometheus, Watched, needs_prometheus, needs_rotel, prometheus, tool, wait_until

from specmesh.runtime.telemetry.names import METRICS, Metric, prometheus_label
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

DASHBOARD = ROOT / "deploy" / "dashboard" / "specmesh.json"
ALERTS = ROOT / "deploy" / "alerts" / "specmesh.yaml"
ALERT_TESTS = ROOT / "deploy" / "alerts" / "specmesh_test.yaml"
COMPARISON = re.compile(r"\s*(?:>|<|>=|<=|==|!=)\s*[\d.]+\s*$")
SERVER_LABELS = {"le", "instance", "job"}


def dashboard_expressions() -> list[str]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def series_of(metric: Metric) -> set[str]:
    name = metric.prometheus
    return {f"{name}_{part}" for part in ("bucket", "sum", "count")} if metric.kind == "histogram" else {name}


BY_SERIES = {series: metric for metric in METRICS for series in series_of(metric)}


def check_names(expression: str) -> None:
    """Every series is of the table, and every label is of one of the metrics that the expression asks for."""
    used = set(re.findall(r"\b(?:specmesh|gen_ai|rpc)_\w+(?=\{|\[|\)|$|\s)", expression))
    series = {name for name in used if name in BY_SERIES}
    labels = {prometheus_label(name) for each in series for name in BY_SERIES[each].attributes} | SERVER_LABELS
    assert series, expression
    assert used <= series | labels, expression
    for group in re.findall(r"\b(?:by|ignoring|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= labels, expression
    for label in re.findall(r"[{,]\s*(\w+)\s*[=!]", expression):
        assert label in labels, expression


def test_the_dashboard_asks_only_for_what_exists() -> None:
    expressions = dashboard_expressions()
    assert len(expressions) >= 40
    for expression in expressions:
        check_names(expression)


def test_the_dashboard_shows_every_metric() -> None:
    asked = " ".join(dashboard_expressions())
    assert [metric.name for metric in METRICS if not any(series in asked for series in series_of(metric))] == []


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_alerts_ask_only_for_what_exists_and_say_what_to_do() -> None:
    for rule in alert_rules():
        check_names(rule["expr"])
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
    text = (ROOT / "docs" / "observability.md").read_text()
    assert [rule["alert"] for rule in alert_rules() if rule["alert"] not in text] == []


@needs_prometheus
def test_alerts_fire_on_what_they_are_for_and_are_silent_otherwise() -> None:
    for arguments in (["check", "rules", str(ALERTS)], ["test", "rules", str(ALERT_TESTS)]):
        done = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def asked(watched: Watched, tmp_path: Path) -> Iterator[Prometheus]:
    targets = [f"127.0.0.1:{port}" for port in watched.ports.values()]
    with prometheus(tmp_path, targets, ALERTS) as running:
        yield running


@needs_prometheus
@needs_rotel
@pytest.mark.slow
async def test_every_expression_has_data_from_a_running_mesh(
    watched: Watched, stub: RouterServiceStub, asked: Prometheus
) -> None:
    """Each metric of the table, each panel, and what each alert compares."""
    expressions = [expression.replace("$__rate_interval", "1m") for expression in dashboard_expressions()]
    expressions += [COMPARISON.sub("", rule["expr"]) for rule in alert_rules()]
    expressions += [metric.query for metric in METRICS]

    async def load() -> None:
        await generate(stub, request(max_output_tokens=60, arms=["near"]))
        await generate(stub, request(max_output_tokens=5, arms=[]))
        await refused(generate(stub, request(prompt=[], max_output_tokens=4)))

    await load()
    scraped = "max(specmesh_router_sessions) >= 0 and sum(gen_ai_server_request_duration_seconds_count) > {}"
    wait_until(lambda: bool(asked.query(scraped.format(2))), "the first requests are scraped")
    await load()
    wait_until(lambda: bool(asked.query(scraped.format(5))), "the next ones are scraped")
    missing = [expression for expression in expressions if not asked.query(expression)]
    assert missing == []
    rules = asked.rules()
    assert set(rules) == {rule["alert"] for rule in alert_rules()}
    assert {name for name, rule in rules.items() if rule["health"] == "err"} == set()

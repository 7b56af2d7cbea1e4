"""The keys of the services' configurations, as the chart knows them."""

import runpy

from chart_values import values, verifier
from helm_charts import CHART, ROOT, config_of, needs_tools, render


def test_the_chart_knows_the_keys_that_the_services_read() -> None:
    """After a change of a configuration: `python packaging/chart_keys.py`."""
    written = runpy.run_path(str(ROOT / "packaging" / "chart_keys.py"))["text"]()
    assert (CHART / "config-keys.txt").read_text() == written


@needs_tools
def test_keys_that_the_services_read_are_taken() -> None:
    """A section, one within it, a table whose keys are anybody's, and what only another version can judge."""
    own = {"name": "own", "kind": "lookup", "image": {"tag": "next"}, "config": {"limits": {"of_the_next_version": 1}}}
    lookup = {"name": "lookup", "kind": "lookup", "config": {"drafter": {"min_match": 2}, "limits": {"max_row": 8}}}
    router = {"config": {"telemetry": {"tenants": ["a"]}, "drafts": {"block_deadline_ms": 9}, "model_name": "m"}}
    objects = render(
        values(own, lookup, router=router, verifiers=verifier(config={"engine": {"max_sessions": 9}})),
    )
    assert 'tenants = ["a"]' in config_of(objects, "router")
    assert "max_sessions = 9" in config_of(objects, "verifier-main")
    assert "of_the_next_version = 1" in config_of(objects, "draft-own")

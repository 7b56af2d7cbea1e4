"""What a service has measured when it is told to end still reaches the collector."""

from pathlib import Path

import pytest
from mesh_calls import generate, request, router_at, wait_ready
from mesh_processes import Service
from mesh_tables import write_tables
from telemetry_parts import collector, needs_rotel, wait_until

pytestmark = [needs_rotel, pytest.mark.slow]

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = (("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"),)


async def test_spans_and_metrics_leave_before_the_service_does(tmp_path: Path) -> None:
    """With intervals so long that only the end can have sent them."""
    tables = write_tables(tmp_path, 8, seed=11)
    with collector(tmp_path) as receiver:
        telemetry = {
            "telemetry__otlp_endpoint": receiver.endpoint,
            "telemetry__spans_seconds": 600.0,
            "telemetry__metrics_seconds": 600.0,
        }
        with (
            Service("verifier", tmp_path, model=f"table:{tables.target}") as verifier,
            Service("draft", tmp_path, kind="table", drafter__path=tables.near) as draft,
            Service(
                "router",
                tmp_path,
                verifiers=[verifier.address],
                pools=[{"name": "near", "addresses": [draft.address]}],
                **telemetry,
            ) as router,
        ):
            async with router_at(router.address) as stub:
                await wait_ready(stub, "near")
                await generate(stub, request(), metadata=SAMPLED)
            assert not receiver.sink.spans
            assert router.terminate() == 0
        wait_until(lambda: TRACE in receiver.sink.traces(), "spans")
        wait_until(lambda: "specmesh.steps" in receiver.sink.metrics, "metrics")

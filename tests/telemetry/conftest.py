"""A mesh that is watched: every service sends spans and metrics to rotel, and answers Prometheus."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
from mesh_calls import router_at, wait_ready
from mesh_processes import Service
from mesh_tables import write_tables
from telemetry_parts import Watched, collector, free_port

from specmesh.v1.router_service_pb2_grpc import RouterServiceStub


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Nothing is traced that its caller does not want traced; an engine of 2 ms, so that steps take some time."""
    folder = tmp_path_factory.mktemp("watched")
    tables = write_tables(folder, 8, seed=11)
    with ExitStack() as stack:
        receiver = stack.enter_context(collector(folder))
        ports = {name: free_port() for name in ("verifier", "draft", "router")}

        def start(name: str, **settings: object) -> Service:
            settings |= {
                "telemetry__otlp_endpoint": receiver.endpoint,
                "telemetry__prometheus_host": "127.0.0.1",
                "telemetry__prometheus_port": ports[name],
                "telemetry__sample_ratio": 0.0,
                "telemetry__spans_seconds": 0.1,
                "telemetry__metrics_seconds": 0.5,
            }
            return stack.enter_context(Service(name, folder, **settings))

        verifier = start(
            "verifier", model=f"table:{tables.target}", table__max_context_tokens=4096, table__delay_ms=2.0
        )
        draft = start("draft", kind="table", drafter__path=tables.near)
        router = start(
            "router",
            verifiers=[verifier.address],
            pools=[{"name": "near", "addresses": [draft.address]}],
            policy__name="fixed",
            policy__settings__fixed_length=4,
            drafts__block_deadline_ms=2000,
            drafts__min_deadline_ms=2000,
        )
        yield Watched(verifier, draft, router, ports, receiver)


@pytest.fixture
async def stub(watched: Watched) -> AsyncIterator[RouterServiceStub]:
    """Of the router, its draft ready."""
    watched.collector.sink.clear()
    async with router_at(watched.router.address) as found:
        await wait_ready(found, "near")
        yield found

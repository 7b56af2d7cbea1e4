"""A collector that does not answer changes nothing but a counter."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from mesh_calls import Generation, generate, request, router_at, wait_ready
from mesh_processes import Service
from mesh_tables import write_tables
from telemetry_parts import free_port, scrape, wait_until

from specmesh.runtime.telemetry.setup import STOP_SECONDS

pytestmark = pytest.mark.slow

SAMPLED = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
SEED = {"sampling": {"seed": 7}}


@contextmanager
def silent() -> Iterator[str]:
    """An endpoint that takes calls and never answers them."""
    over = threading.Event()

    def answer(request: object, context: object) -> bytes:
        over.wait()
        return b""

    class Silence(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(32), handlers=[Silence()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    over.set()
    server.stop(None).wait()


@contextmanager
def refusing() -> Iterator[str]:
    """An endpoint where nobody listens."""
    yield f"http://127.0.0.1:{free_port()}"


def dropped(port: int) -> float:
    found = re.search(r'specmesh_telemetry_dropped_total\{specmesh_signal="traces"\} (\S+)', scrape(port))
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("endpoint", [refusing, silent])
async def test_a_dead_collector_changes_nothing_but_a_counter(tmp_path: Path, endpoint: object) -> None:
    """The text is the same, a drain under SIGTERM loses no token and ends in time, one line of the log says why."""
    tables = write_tables(tmp_path, 8, seed=11)
    with ExitStack() as stack:
        dead = stack.enter_context(endpoint())  # type: ignore[operator]
        port = free_port()
        telemetry = {
            "telemetry__otlp_endpoint": dead,
            "telemetry__max_spans": 50,
            "telemetry__spans_seconds": 0.05,
            "telemetry__metrics_seconds": 0.2,
        }
        verifier = stack.enter_context(
            Service("verifier", tmp_path, model=f"table:{tables.target}", table__delay_ms=5.0, **telemetry)
        )
        draft = stack.enter_context(Service("draft", tmp_path, kind="table", drafter__path=tables.near, **telemetry))
        settings = {
            "verifiers": [verifier.address],
            "pools": [{"name": "near", "addresses": [draft.address]}],
            "policy__name": "fixed",
            "drafts__block_deadline_ms": 2000,
            "drafts__min_deadline_ms": 2000,
        }
        plain = stack.enter_context(Service("router", tmp_path, **settings))
        watched = stack.enter_context(
            Service("router", tmp_path, **settings, **telemetry, telemetry__prometheus_port=port)
        )
        async with router_at(plain.address) as bare, router_at(watched.address) as stub:
            await wait_ready(bare, "near")
            await wait_ready(stub, "near")
            expected = await generate(bare, request(max_output_tokens=50, **SEED))
            same = await generate(stub, request(max_output_tokens=50, **SEED), metadata=SAMPLED)
            assert same.token_ids == expected.token_ids
            for _ in range(3):
                await generate(stub, request(max_output_tokens=50, **SEED), metadata=SAMPLED)
            wait_until(lambda: dropped(port) > 0, "spans are counted as dropped")

            generation, ending = Generation(), None
            async for event in stub.Generate(
                request(max_output_tokens=50, arms=[], **SEED), metadata=SAMPLED, timeout=60
            ):
                generation.take(event)
                if len(generation.token_ids) >= 5 and ending is None:
                    ending = asyncio.create_task(asyncio.to_thread(watched.terminate))
            began = time.monotonic()
            assert generation.token_ids == expected.token_ids
            assert ending is not None
            assert await ending == 0
            assert time.monotonic() - began < STOP_SECONDS + 2.5, "less than one export may take"
        for service in (watched, verifier, draft):
            assert service.log().count("telemetry does not reach its collector") == 1, service.log()
            assert '"level": "ERROR"' not in service.log()
        assert verifier.terminate() == draft.terminate() == 0

"""Envoy in front of two routers, with the configuration that is shipped: only addresses are the test's."""

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import yaml
from helm_charts import ROOT, needs_tools, tool
from mesh_calls import generate, request, router_at, wait_ready
from mesh_processes import Service
from mesh_tables import write_tables

from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

pytestmark = [needs_tools, pytest.mark.slow]


@dataclass
class Front:
    """What runs."""

    routers: list[Service]
    address: str

    def generated(self) -> list[int]:
        """Texts that each router has ended."""
        return [router.log().count('"message": "generated"') for router in self.routers]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def configuration(folder: Path, port: int, routers: list[Service]) -> Path:
    """The shipped file with these addresses."""
    config = yaml.safe_load((ROOT / "deploy" / "envoy.yaml").read_text())
    config["admin"]["address"]["socket_address"]["port_value"] = free_port()
    [listener], [cluster] = config["static_resources"]["listeners"], config["static_resources"]["clusters"]
    listener["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": port}
    [group] = cluster["load_assignment"]["endpoints"]
    [template] = group["lb_endpoints"]
    group["lb_endpoints"] = []
    for router in routers:
        host, _, number = router.address.rpartition(":")
        endpoint = deepcopy(template)
        endpoint["endpoint"]["address"]["socket_address"] = {"address": host, "port_value": int(number)}
        group["lb_endpoints"].append(endpoint)
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextlib.contextmanager
def envoy(folder: Path, path: Path) -> Iterator[None]:
    with (folder / "envoy.log").open("wb") as log:
        command = [tool("envoy"), "-c", str(path), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    tables = write_tables(tmp_path, 8, seed=9)
    with ExitStack() as stack:
        target = {"model": f"table:{tables.target}", "table__delay_ms": 5}
        verifier = stack.enter_context(Service("verifier", tmp_path, **target))
        draft = stack.enter_context(Service("draft", tmp_path, kind="lookup"))
        settings = {
            "verifiers": [verifier.address],
            "pools": [{"name": "look", "addresses": [draft.address]}],
            "policy__name": "fixed",
            "server__min_drain_seconds": 2,
        }
        routers = [stack.enter_context(Service("router", tmp_path, **settings)) for _ in range(2)]
        port = free_port()
        stack.enter_context(envoy(tmp_path, configuration(tmp_path, port, routers)))
        yield Front(routers, f"127.0.0.1:{port}")


@pytest.fixture
async def stub(front: Front) -> AsyncIterator[RouterServiceStub]:
    """Through Envoy, both routers healthy in its eyes."""
    async with router_at(front.address) as through:
        async with asyncio.timeout(60):
            while not all(front.generated()):
                with contextlib.suppress(grpc.aio.AioRpcError):  # not listening yet, or no healthy router yet
                    await generate(through, request(max_output_tokens=2), wait_for_ready=True)
        await wait_ready(through, "look")
        yield through


async def test_calls_and_not_connections_are_balanced(front: Front, stub: RouterServiceStub) -> None:
    """One client connection, both routers work."""
    before = front.generated()
    answers = await asyncio.gather(*(generate(stub, request(max_output_tokens=30)) for _ in range(20)))
    assert all(len(answer.token_ids) == 30 for answer in answers)
    shares = [now - then for now, then in zip(front.generated(), before, strict=True)]
    assert sum(shares) == 20
    assert min(shares) >= 5


async def test_c32_no_call_is_lost_when_a_router_is_replaced(front: Front, stub: RouterServiceStub) -> None:
    """C32: texts in flight at SIGTERM end whole; later ones go to the other router, which clients do not notice."""
    texts: list[int] = []
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            texts.append(len((await generate(stub, request(max_output_tokens=40, arms=[]))).token_ids))

    workers = [asyncio.create_task(work()) for _ in range(6)]
    while len(texts) < 12:
        await asyncio.wait(workers, timeout=0.05)
    status = await asyncio.to_thread(front.routers[0].terminate)
    reached = len(texts)
    while len(texts) < reached + 12:
        await asyncio.wait(workers, timeout=0.05)
    stop.set()
    await asyncio.gather(*workers)
    assert status == 0
    assert set(texts) == {40}


async def test_a_method_that_is_not_the_public_api_does_not_pass(front: Front, stub: RouterServiceStub) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with grpc.aio.insecure_channel(front.address) as through:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(through).Check(health_pb2.HealthCheckRequest(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

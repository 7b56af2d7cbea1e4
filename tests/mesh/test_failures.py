"""Clients, routers and verifiers that go away; overload; services that drain."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mesh_calls import at_most, generate, refused, request, router_at, wait_ready
from mesh_processes import Running, Service, start_router

from specmesh.runtime.status import PUSHBACK_KEY, from_rpc_error
from specmesh.v1 import verifier_service_pb2 as verifier_pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub
from specmesh.v1.verifier_service_pb2_grpc import VerifierServiceStub

GREEDY = {"temperature": 0}


@asynccontextmanager
async def info_of(verifier: Service) -> AsyncIterator[Any]:
    """Calls GetInfo."""
    async with grpc.aio.insecure_channel(verifier.address) as channel:
        stub = VerifierServiceStub(channel)
        yield lambda: stub.GetInfo(verifier_pb.VerifierServiceGetInfoRequest(), timeout=10)


async def freed(get_info: Any, free_blocks: int, seconds: float) -> float:
    """Seconds until the verifier holds nothing."""
    started = time.monotonic()
    async with asyncio.timeout(seconds):
        while True:
            info = await get_info()
            if info.session_count == 0 and info.free_block_count == free_blocks:
                return time.monotonic() - started
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def slow(mesh: Running) -> Iterator[Service]:
    """A verifier that takes 8 ms for a step."""
    model = f"table:{mesh.tables.target}"
    with Service("verifier", mesh.folder, model=model, table__max_context_tokens=600, table__delay_ms=8) as slow:
        yield slow


async def test_cancelled_clients_leave_nothing_behind(mesh: Running, slow: Service) -> None:
    """C22: 100 clients go after 3 of 500 tokens; within a second the verifier holds nothing of theirs."""
    with start_router(mesh, mesh.pools("near"), verifiers=[slow.address]) as router:
        async with router_at(router.address) as stub, info_of(slow) as get_info:
            await wait_ready(stub, "near")
            blocks = (await get_info()).free_block_count

            async def go_early(length: int) -> None:
                call = stub.Generate(request(max_output_tokens=500, block_length=length), timeout=60)
                tokens = 0
                async for event in call:
                    tokens += len(event.delta.token_ids)
                    if tokens >= 3:
                        break
                call.cancel()

            await at_most(25, [go_early(number % 5) for number in range(100)])
            assert await freed(get_info, blocks, seconds=1.0) < 1.0
            assert len((await generate(stub, request())).token_ids) == 20


async def test_sessions_of_a_killed_router_end_with_their_lease(mesh: Running, slow: Service) -> None:
    """C22: kill -9 of the router; the verifier frees within the lease."""
    with start_router(mesh, [], verifiers=[slow.address], sessions__lease_ms=1000) as router:
        async with router_at(router.address) as stub, info_of(slow) as get_info:
            blocks = (await get_info()).free_block_count
            calls = [stub.Generate(request(max_output_tokens=500), timeout=60) for _ in range(10)]
            for call in calls:
                await call.read()
            assert (await get_info()).session_count == 10
            router.kill()
            assert await freed(get_info, blocks, seconds=2.0) < 2.0


async def test_a_drain_loses_nothing(mesh: Running, slow: Service) -> None:
    """C32: SIGTERM at token 5 of 300, seconds before the end: all arrive, new calls are UNAVAILABLE, exit 0."""
    with start_router(mesh, [], verifiers=[slow.address]) as router:
        async with router_at(router.address) as stub:
            call = stub.Generate(request(max_output_tokens=300), timeout=60)
            token_ids: list[int] = []
            ending: asyncio.Task[int] | None = None
            async for event in call:
                token_ids += event.delta.token_ids
                if len(token_ids) >= 5 and ending is None:
                    ending = asyncio.create_task(asyncio.to_thread(router.terminate))
                    await _until_draining(stub)
            assert len(token_ids) == 300
            assert ending is not None
            assert await ending == 0


async def _until_draining(stub: RouterServiceStub) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await generate(stub, request(max_output_tokens=1), timeout=5)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
                assert from_rpc_error(error).reason == "DRAINING"  # noqa: PT017
                return


async def test_health_tells_loading_from_serving(mesh: Running, tmp_path: Path) -> None:
    """C31: the router answers from the first second, NOT_SERVING until it has a verifier; and during a long forward."""
    port = 0
    with Service("verifier", mesh.folder, model=f"table:{mesh.tables.target}") as probe:
        port = int(probe.address.rpartition(":")[2])
    config = {"verifiers": [f"127.0.0.1:{port}"], "discovery_seconds": 0.2}
    with Service("router", mesh.folder, **config, server__port=port + 1) as router:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port + 1}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            check = health_pb2.HealthCheckRequest(service="specmesh.v1.RouterService")
            answer = await health.Check(check, timeout=20, wait_for_ready=True)
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
            error = await refused(generate(RouterServiceStub(channel), request()))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            late = Service(
                "verifier",
                mesh.folder,
                model=f"table:{mesh.tables.target}",
                server__port=port,
                table__delay_ms=1500,
            )
            with late:
                assert router.address == f"127.0.0.1:{port + 1}"
                assert (await health.Check(check, timeout=5)).status == health_pb2.HealthCheckResponse.SERVING
                running = asyncio.create_task(generate(RouterServiceStub(channel), request(max_output_tokens=1)))
                slowest = 0.0
                while not running.done():
                    started = time.monotonic()
                    await health.Check(check, timeout=5)
                    slowest = max(slowest, time.monotonic() - started)
                    await asyncio.sleep(0.05)
                assert slowest < 0.2


def test_a_router_that_cannot_start_says_why(mesh: Running) -> None:
    """C31: a failed start exits non-zero with one line that names the key."""
    with Service("router", mesh.folder, verifiers=["127.0.0.1:1"], policy__name="clairvoyant") as router:
        assert router.process.wait(20) == 2
        assert "policy.name" in router.log()


async def test_idle_streams_are_not_sent_away(mesh: Running) -> None:
    """C25: pings of a client that waits for a long step do not count as too many."""
    slow = Service(
        "verifier",
        mesh.folder,
        model=f"table:{mesh.tables.target}",
        table__delay_ms=6000,
        server__min_ping_interval_seconds=1,
    )
    with slow, start_router(mesh, [], verifiers=[slow.address], server__keepalive_seconds=1) as router:
        async with router_at(router.address) as stub:
            assert len((await generate(stub, request(max_output_tokens=1))).token_ids) == 1
            assert "verifier lost" not in router.log()


async def test_a_verifier_that_hangs_is_left_for_another(mesh: Running) -> None:
    """Stopped and not dead: its connection stays, and only pings go unanswered."""
    two = [
        Service(
            "verifier",
            mesh.folder,
            model=f"table:{mesh.tables.target}",
            table__delay_ms=20,
            server__min_ping_interval_seconds=0.5,
        )
        for _ in range(2)
    ]
    with two[0], two[1]:
        addresses = [service.address for service in two]
        with start_router(mesh, [], verifiers=addresses, server__keepalive_seconds=1) as router:
            async with router_at(router.address) as stub:
                call = stub.Generate(request(max_output_tokens=300), timeout=60)
                token_ids: list[int] = []
                stopped: Service | None = None
                async for event in call:
                    token_ids += event.delta.token_ids
                    if stopped is None and len(token_ids) >= 5:
                        stopped = await _busy_one(two)
                        stopped.process.send_signal(signal.SIGSTOP)
                        began = time.monotonic()
                assert stopped is not None
                assert len(token_ids) == 300
                assert time.monotonic() - began < 30
                stopped.process.send_signal(signal.SIGCONT)


async def _busy_one(services: Sequence[Service]) -> Service:
    for service in services:
        async with info_of(service) as get_info:
            if (await get_info()).session_count:
                return service
    raise AssertionError("no verifier has a session")


async def test_overload_says_when_to_come_back(mesh: Running, slow: Service) -> None:
    """C41: RESOURCE_EXHAUSTED with the pushback trailer; a caller's own limit as well as the router's."""
    limits = {"limits__max_sessions": 1, "limits__max_queued": 0, "limits__retry_seconds": 0.25}
    for extra, reason, pushback in (
        ({}, "OVERLOADED", range(250, 251)),
        ({"limits__max_sessions_per_caller": 1}, "QUOTA", range(250, 251)),
        # 502 of 300 are taken, and 5 come back in a second.
        ({"limits__max_tokens_per_caller_minute": 300}, "QUOTA", range(20_000, 40_601)),
    ):
        with start_router(mesh, [], verifiers=[slow.address], **limits, **extra) as router:
            async with router_at(router.address) as stub:
                call = stub.Generate(request(max_output_tokens=500), timeout=60)
                await call.read()
                error = await refused(generate(stub, request()))
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert from_rpc_error(error).reason == reason
                assert int(dict(error.trailing_metadata() or ())[PUSHBACK_KEY]) in pushback
                call.cancel()


async def test_lost_verifiers_are_replaced_in_the_middle_of_a_text(mesh: Running) -> None:
    """C41, the router's side: one of two verifiers is killed; the text is the one that its seed gives."""
    settings = {"model": f"table:{mesh.tables.target}", "table__delay_ms": 10}
    with (
        Service("verifier", mesh.folder, **settings) as one,
        Service("verifier", mesh.folder, **settings) as two,
        start_router(mesh, mesh.pools("near"), verifiers=[one.address, two.address]) as router,
    ):
        async with router_at(router.address) as stub:
            await wait_ready(stub, "near")
            messages = [request((seed, 1), 100, sampling={"seed": seed}) for seed in range(4)]
            whole = [await generate(stub, message) for message in messages]
            running = [asyncio.create_task(generate(stub, message)) for message in messages]
            async with info_of(one) as get_info, asyncio.timeout(10):
                while (await get_info()).session_count < 2:  # noqa: ASYNC110  another process's state
                    await asyncio.sleep(0.01)
            one.kill()
            answers = await asyncio.gather(*running)
            assert [each.summary for each in answers] == [each.summary for each in whole]

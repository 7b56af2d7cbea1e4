import asyncio
import time

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pydantic import ValidationError
from serving_fakes import DRAFT_NAME, ROUTER_NAME, Script, call_every_kind, one_request, scripted_server

from specmesh.runtime.config import ClientTls, ConfigError, ServerConfig, TlsConfig
from specmesh.runtime.errors import Draining, Overloaded
from specmesh.runtime.serving import LIVENESS, MeshServer
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.streams import DEFAULT_KEEPALIVE_SECONDS, channel
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import draft_service_pb2_grpc as draft_grpc
from specmesh.v1 import router_service_pb2 as router_pb
from specmesh.v1 import router_service_pb2_grpc as router_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health_of(to_server: grpc.aio.Channel, service: str) -> int:
    answer = await health_pb2_grpc.HealthStub(to_server).Check(health_pb2.HealthCheckRequest(service=service))
    return answer.status


async def wait_for_health(to_server: grpc.aio.Channel, service: str, status: int) -> None:
    watch = health_pb2_grpc.HealthStub(to_server).Watch(health_pb2.HealthCheckRequest(service=service))
    async with asyncio.timeout(5):
        async for answer in watch:
            if answer.status == status:
                return


def generate(to_server: grpc.aio.Channel, num_tokens: int) -> grpc.aio.UnaryStreamCall:
    request = router_pb.GenerateRequest(stop={"max_output_tokens": num_tokens})
    return router_grpc.RouterServiceStub(to_server).Generate(request)


async def test_c31_health_is_not_serving_until_told_and_serving_after() -> None:
    """C31: health answers from the first second of a load, for every service name."""
    server = MeshServer(ServerConfig(), [DRAFT_NAME, ROUTER_NAME])
    await server.start()
    async with channel(server.address) as to_server:
        for name in ("", DRAFT_NAME, ROUTER_NAME):
            assert await health_of(to_server, name) == NOT_SERVING
        server.set_serving()
        for name in ("", DRAFT_NAME, ROUTER_NAME):
            await wait_for_health(to_server, name, SERVING)
    await server.stop(0)


async def test_c31_the_process_is_live_while_it_loads_and_while_it_drains() -> None:
    """C31: a liveness probe must not end a process that is only not ready."""
    release = asyncio.Event()
    script = Script(on_call=release.wait)
    async with scripted_server(script) as server, channel(server.address) as to_server:
        call = asyncio.create_task(call_every_kind(to_server))
        await script.started.wait()
        drain = asyncio.create_task(server.drain())
        await wait_for_health(to_server, DRAFT_NAME, NOT_SERVING)
        assert await health_of(to_server, LIVENESS) == SERVING
        release.set()
        await call
        await drain
    loading = MeshServer(ServerConfig(), [DRAFT_NAME])
    await loading.start()
    async with channel(loading.address) as to_server:
        assert await health_of(to_server, LIVENESS) == SERVING
        assert await health_of(to_server, DRAFT_NAME) == NOT_SERVING
    await loading.stop(0)


async def test_c31_health_answers_within_200_ms_while_a_handler_is_busy() -> None:
    """C31: a long forward runs in a thread; health does not wait for it, nor for the limit of calls."""
    release = asyncio.Event()
    config = ServerConfig(max_concurrent_calls=1)
    async with scripted_server(Script(on_call=release.wait), config) as server, channel(server.address) as to_server:
        stuck = asyncio.create_task(call_every_kind(to_server))
        await server_started(to_server)
        before = time.perf_counter()
        await health_of(to_server, DRAFT_NAME)
        assert time.perf_counter() - before < 0.2
        release.set()
        await stuck


async def server_started(to_server: grpc.aio.Channel) -> None:
    await wait_for_health(to_server, DRAFT_NAME, SERVING)


async def test_a_call_over_the_limit_is_refused_with_a_pushback() -> None:
    release = asyncio.Event()
    script = Script(on_call=release.wait)
    config = ServerConfig(max_concurrent_calls=1)
    async with scripted_server(script, config) as server, channel(server.address) as to_server:
        stub = draft_grpc.DraftServiceStub(to_server)
        first = asyncio.ensure_future(stub.GetInfo(draft_pb.DraftServiceGetInfoRequest()))
        await script.started.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetInfo(draft_pb.DraftServiceGetInfoRequest())
        refusal = from_rpc_error(caught.value)
        assert isinstance(refusal, Overloaded)
        assert "server.max_concurrent_calls" in refusal.message
        assert refusal.retry_after
        release.set()
        await first


async def test_c32_a_drain_finishes_live_streams_and_refuses_new_calls() -> None:
    """C32: drain at message 5 of 50: all 50 arrive, a new call is UNAVAILABLE, and the drain ends."""
    turn = asyncio.Semaphore(5)
    async with scripted_server(Script(on_message=turn.acquire)) as server, channel(server.address) as to_server:
        stream = generate(to_server, 50)
        received = [await stream.read() for _ in range(5)]
        draining = asyncio.create_task(server.drain())
        await server.draining.wait()
        await wait_for_health(to_server, ROUTER_NAME, NOT_SERVING)
        for kind, failure in (await call_every_kind(to_server)).items():
            assert failure is not None, kind
            assert isinstance(from_rpc_error(failure), Draining)
            assert failure.code() is grpc.StatusCode.UNAVAILABLE
        for _ in range(50):
            turn.release()
        received += [await stream.read() for _ in range(45)]
        assert await stream.read() == grpc.aio.EOF
        await asyncio.wait_for(draining, 5)
    assert [message.delta.output_offset for message in received] == list(range(50))


async def test_c32_a_drain_awaits_what_the_service_must_end_and_no_peers_stream() -> None:
    """C32: a bidi stream lasts as long as its peer; the drain asks the service when its sessions are done."""
    sessions_done = asyncio.Event()
    script = Script()
    async with scripted_server(script) as server, channel(server.address) as to_server:
        stream = draft_grpc.DraftServiceStub(to_server).Draft()
        await stream.write(draft_pb.DraftRequest())
        await stream.read()
        drain = asyncio.create_task(server.drain(sessions_done.wait))
        await server.draining.wait()
        await stream.write(draft_pb.DraftRequest())
        assert await stream.read() == draft_pb.DraftResponse()
        assert not drain.done()
        sessions_done.set()
        await asyncio.wait_for(drain, 5)


async def test_c32_a_drain_ends_in_its_time_with_work_left() -> None:
    """C32: within the drain time, whatever is still running."""
    never = asyncio.Event()
    config = ServerConfig(drain_seconds=0.2)
    async with scripted_server(Script(on_message=never.wait), config) as server, channel(server.address) as to_server:
        stream = generate(to_server, 2)
        await stream.read()
        await asyncio.wait_for(server.drain(), 3)
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.read()


async def test_c32_a_drain_with_nothing_in_flight_tells_callers_to_go_elsewhere_for_a_while() -> None:
    """C32: as long as load balancers may send calls, the answer is UNAVAILABLE, which is tried again elsewhere."""
    config = ServerConfig(min_drain_seconds=0.5)
    async with scripted_server(Script(), config) as server, channel(server.address) as to_server:
        started = time.monotonic()
        draining = asyncio.create_task(server.drain())
        await server.draining.wait()
        while time.monotonic() - started < 0.4:
            stub = draft_grpc.DraftServiceStub(to_server)
            call = stub.GetInfo(draft_pb.DraftServiceGetInfoRequest())
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert "draining" in await call.details()
        await draining
        assert time.monotonic() - started >= 0.5
    with pytest.raises(ValidationError, match="must not exceed"):
        ServerConfig(min_drain_seconds=2, drain_seconds=1)


async def test_c25_pings_without_traffic_bring_no_goaway() -> None:
    """C25: a silent stream outlives several keepalive intervals when the server allows that interval.

    The same with a server that allows less is cut with ENHANCE_YOUR_CALM, which shows that the pings are sent.
    """

    async def silent_stream_survives(min_ping_seconds: float) -> bool:
        release = asyncio.Event()
        config = ServerConfig(min_ping_interval_seconds=min_ping_seconds)
        async with (
            scripted_server(Script(on_message=release.wait), config) as server,
            channel(server.address, keepalive_seconds=0.25) as to_server,
        ):
            stream = draft_grpc.DraftServiceStub(to_server).Draft(one_request())
            await stream.read()
            ended = asyncio.ensure_future(stream.read())
            await asyncio.wait({ended}, timeout=4)  # gRPC sends three pings in that time
            survived = not ended.done()
            release.set()
            await asyncio.wait({ended}, timeout=3)
        return survived and ended.exception() is None

    allowed, forbidden = await asyncio.gather(silent_stream_survives(0.1), silent_stream_survives(60))
    assert allowed
    assert not forbidden


def test_c25_the_default_client_interval_is_allowed_by_the_default_server() -> None:
    """C25: server minimum ping interval <= client keepalive."""
    assert ServerConfig().min_ping_interval_seconds <= DEFAULT_KEEPALIVE_SECONDS


async def test_messages_over_the_limit_are_refused_by_each_side() -> None:
    config = ServerConfig(max_message_bytes=64 * 1024)
    too_large = draft_pb.DraftServiceOpenRequest(token_ids=[1 << 20] * 65536)
    async with scripted_server(Script(), config) as server, channel(server.address) as to_server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await draft_grpc.DraftServiceStub(to_server).Open(iter([too_large]))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not any((await call_every_kind(to_server)).values())


async def test_a_request_somewhat_over_the_limit_is_told_which_limit_and_what_to_do() -> None:
    """Far larger ones are refused by gRPC itself, in its own words, before they are in memory."""
    config = ServerConfig(max_message_bytes=64 * 1024)
    async with scripted_server(Script(), config) as server, channel(server.address) as to_server:
        stub = router_grpc.RouterServiceStub(to_server)
        request = router_pb.GenerateRequest(text="x" * 70_000, stop={"max_output_tokens": 1})
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(request).read()
        error = from_rpc_error(caught.value)
        assert error.status is grpc.StatusCode.INVALID_ARGUMENT
        assert error.message == (
            f"request: {request.ByteSize()} bytes; server.max_message_bytes is 65536 here: send less at a time"
        )
        messages = [draft_pb.DraftServiceOpenRequest(), draft_pb.DraftServiceOpenRequest(token_ids=[1 << 20] * 23_000)]
        with pytest.raises(grpc.aio.AioRpcError, match=r"server\.max_message_bytes is 65536") as caught:
            await draft_grpc.DraftServiceStub(to_server).Open(iter(messages))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not any((await call_every_kind(to_server)).values())


async def test_the_largest_limit_of_a_message_makes_a_server() -> None:
    most = (1 << 30) - 1
    async with (
        scripted_server(Script(), ServerConfig(max_message_bytes=most)) as server,
        channel(server.address, max_message_bytes=most) as to_server,
    ):
        assert not any((await call_every_kind(to_server)).values())
    with pytest.raises(ValidationError, match="max_message_bytes"):
        ServerConfig(max_message_bytes=1 << 30)


async def test_a_port_in_use_is_named() -> None:
    async with scripted_server(Script()) as server:
        port = int(server.address.rpartition(":")[2])
        second = MeshServer(ServerConfig(port=port), [])
        with pytest.raises(ConfigError, match=r"server\.port"):
            await second.start()
        await second.stop(0)


async def test_reflection_lists_the_services_when_asked_for() -> None:
    config = ServerConfig(reflection=True, channelz=True)
    async with scripted_server(Script(), config) as server, channel(server.address) as to_server:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(to_server)
        answers = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
    assert {DRAFT_NAME, ROUTER_NAME} <= {service.name for service in answers[0].list_services_response.service}


async def test_without_the_flags_there_is_no_reflection() -> None:
    async with scripted_server(Script()) as server, channel(server.address) as to_server:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(to_server)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Files of an authority, a server and a client."""
    folder = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, issued in (("server", authority.issue_cert("localhost")), ("client", authority.issue_cert("client"))):
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    return {path.name: path for path in folder.iterdir()}


async def test_tls_with_client_certificates(pem: dict[str, object]) -> None:
    config = ServerConfig(
        host="localhost",
        tls=TlsConfig(cert_file=pem["server.pem"], key_file=pem["server.key"], client_ca_file=pem["ca.pem"]),
    )
    with_certificate = ClientTls(ca_file=pem["ca.pem"], cert_file=pem["client.pem"], key_file=pem["client.key"])
    without_certificate = ClientTls(ca_file=pem["ca.pem"])
    async with scripted_server(Script(), config) as server:
        async with channel(server.address, tls=with_certificate) as to_server:
            assert not any((await call_every_kind(to_server)).values())
        for tls in (without_certificate, None):
            async with channel(server.address, tls=tls) as to_server:
                assert all((await call_every_kind(to_server)).values())


async def test_a_key_file_that_cannot_be_read_is_named(pem: dict[str, object]) -> None:
    config = ServerConfig(tls=TlsConfig(cert_file=pem["server.pem"], key_file="absent.key"))
    server = MeshServer(config, [])
    with pytest.raises(ConfigError, match=r"server\.tls\.key_file"):
        await server.start()
    await server.stop(0)


def test_a_client_certificate_without_its_key_is_refused(pem: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="together"):
        ClientTls(cert_file=pem["client.pem"])

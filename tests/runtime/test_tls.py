"""TLS, client certificates, their rotation and the allow-list of peers, against running servers."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pem_files import Authority, client_tls, server_tls
from pydantic import ValidationError
from serving_fakes import DRAFT_NAME, ROUTER_NAME, Script, call_every_kind, scripted_server

from specmesh.runtime.access import Access
from specmesh.runtime.config import ClientTls, ConfigError, ServerConfig
from specmesh.runtime.errors import MeshError, NotAllowed
from specmesh.runtime.serving import MeshServer
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.streams import channel
from specmesh.runtime.tls import check_files, peer_identities, server_credentials
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import draft_service_pb2_grpc as draft_grpc
from specmesh.v1 import router_service_pb2 as router_pb
from specmesh.v1 import router_service_pb2_grpc as router_grpc

ROUTER, OTHER = "router.mesh", "draft.mesh"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def config(folder: Path, *, mutual: bool = True, **changes: object) -> ServerConfig:
    return ServerConfig(host="localhost", tls=server_tls(folder, mutual=mutual), **changes)


async def get_info(address: str, tls: ClientTls | None) -> grpc.StatusCode:
    """On a connection of its own."""
    async with channel(address, tls=tls) as to_server:
        try:
            await draft_grpc.DraftServiceStub(to_server).GetInfo(draft_pb.DraftServiceGetInfoRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def until(call: Callable[[], Awaitable[grpc.StatusCode]], code: grpc.StatusCode) -> None:
    async with asyncio.timeout(15):
        while True:
            if await call() is code:
                return
            await asyncio.sleep(0.1)


async def test_every_wrong_certificate_is_turned_away(authority: Authority, tmp_path: Path) -> None:
    """Plaintext, no certificate, an expired one, another authority's, another name of the server: no call arrives."""
    server_folder = authority.issue("server", "localhost")
    right = authority.issue("right", ROUTER)
    (tmp_path / "foreign").mkdir()
    foreign = Authority(tmp_path / "foreign")
    wrong = {
        "plaintext": None,
        "no certificate": client_tls(right, mutual=False),
        "expired": client_tls(authority.issue("expired", ROUTER, expired=True)),
        "signed by another": client_tls(foreign.issue("stranger", ROUTER, trusts=authority)),
        "trusts another": client_tls(foreign.issue("trusting", ROUTER)),
        "other server meant": client_tls(right, "verifier.mesh"),
    }
    async with scripted_server(Script(), config(server_folder)) as server:
        for case, tls in wrong.items():
            assert await get_info(server.address, tls) is grpc.StatusCode.UNAVAILABLE, case
        assert await get_info(server.address, client_tls(right)) is grpc.StatusCode.OK


async def test_a_server_whose_certificate_has_expired_is_not_believed(authority: Authority) -> None:
    folder = authority.issue("server", "localhost", expired=True)
    async with scripted_server(Script(), config(folder)) as server:
        assert await get_info(server.address, client_tls(authority.issue("right"))) is grpc.StatusCode.UNAVAILABLE


async def test_a_rotated_certificate_is_served_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    """The server changes its authority, certificate and key; a stream that is open goes on, new peers see the new."""
    (tmp_path / "next").mkdir()
    following = Authority(tmp_path / "next")
    folder = authority.issue("server", "localhost")
    old, new = client_tls(authority.issue("old", ROUTER)), client_tls(following.issue("new", ROUTER))
    async with (
        scripted_server(Script(), config(folder)) as server,
        channel(server.address, tls=old) as to_server,
    ):
        stream = draft_grpc.DraftServiceStub(to_server).Draft()
        await stream.write(draft_pb.DraftRequest())
        assert await stream.read() == draft_pb.DraftResponse()
        assert await get_info(server.address, new) is grpc.StatusCode.UNAVAILABLE
        following.folder = authority.folder
        following.issue("server", "localhost")
        await until(lambda: get_info(server.address, new), grpc.StatusCode.OK)
        assert await get_info(server.address, old) is grpc.StatusCode.UNAVAILABLE
        await stream.write(draft_pb.DraftRequest())
        assert await stream.read() == draft_pb.DraftResponse()


async def test_half_of_a_rotation_leaves_the_old_certificate(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """A key without its certificate cannot be served; the log says so, without either of them."""
    folder = authority.issue("server", "localhost")
    other = authority.issue("other", "localhost")
    right = client_tls(authority.issue("right"))
    async with scripted_server(Script(), config(folder)) as server:
        (folder / "tls.key").write_bytes((other / "tls.key").read_bytes())
        async with asyncio.timeout(10):
            while not caplog.records:
                assert await get_info(server.address, right) is grpc.StatusCode.OK
        assert "what they said before holds" in caplog.text
        assert "PRIVATE" not in caplog.text
        assert await get_info(server.address, right) is grpc.StatusCode.OK


async def test_a_client_that_reconnects_shows_its_new_certificate(authority: Authority) -> None:
    """Every connection reads the files: an expired certificate is healed by replacing it."""
    folder = authority.issue("client", ROUTER, expired=True)
    async with scripted_server(Script(), config(authority.issue("server", "localhost"))) as server:
        assert await get_info(server.address, client_tls(folder)) is grpc.StatusCode.UNAVAILABLE
        authority.issue("client", ROUTER)
        assert await get_info(server.address, client_tls(folder)) is grpc.StatusCode.OK


async def test_only_peers_on_the_list_may_call_a_method(authority: Authority) -> None:
    """Per method, whatever its kind; the closest entry holds, and a method without one is closed to all."""
    allow = {f"{DRAFT_NAME}/*": (ROUTER,), f"{DRAFT_NAME}/GetInfo": ("operator.mesh", ROUTER)}
    refused = {
        ROUTER: {"server_stream"},  # the router's own service: nobody is named
        "operator.mesh": {"client_stream", "server_stream", "bidi"},
        OTHER: {"unary", "client_stream", "server_stream", "bidi"},
    }
    async with scripted_server(Script(), config(authority.issue("server", "localhost"), allow=allow)) as server:
        for name, kinds in refused.items():
            async with channel(server.address, tls=client_tls(authority.issue(name))) as to_server:
                for kind, call in start_every_kind(to_server).items():
                    if kind in kinds:
                        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED, (name, kind)
                        assert isinstance(await refusal_of(call), NotAllowed)
                        continue
                    if kind in ("client_stream", "bidi"):
                        await call.done_writing()
                    assert await call.code() is grpc.StatusCode.OK, (name, kind)


def start_every_kind(to_server: grpc.aio.Channel) -> dict[str, Any]:
    """One call of each kind; those that stream have sent nothing, so that a refusal meets no message on its way."""
    draft, router = draft_grpc.DraftServiceStub(to_server), router_grpc.RouterServiceStub(to_server)
    return {
        "unary": draft.GetInfo(draft_pb.DraftServiceGetInfoRequest()),
        "client_stream": draft.Open(),
        "server_stream": router.Generate(router_pb.GenerateRequest()),
        "bidi": draft.Draft(),
    }


async def refusal_of(call: grpc.aio.Call) -> MeshError:
    trailers, details = await call.trailing_metadata(), await call.details()
    return from_rpc_error(grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), trailers, details))


async def test_reflection_and_channelz_are_under_the_list_too(authority: Authority) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    allow = {"grpc.reflection.v1alpha.ServerReflection/*": ("operator.mesh",), f"{DRAFT_NAME}/*": (ROUTER,)}
    codes = {}
    settings = config(authority.issue("server", "localhost"), allow=allow, reflection=True, channelz=True)
    async with scripted_server(Script(), settings) as server:
        for name in ("operator.mesh", ROUTER):
            async with channel(server.address, tls=client_tls(authority.issue(name))) as to_server:
                stub = reflection_pb2_grpc.ServerReflectionStub(to_server)
                request = reflection_pb2.ServerReflectionRequest(list_services="")
                call = stub.ServerReflectionInfo(iter([request]))
                try:
                    answers = [answer async for answer in call]
                    assert DRAFT_NAME in str(answers)
                    codes[name] = grpc.StatusCode.OK
                except grpc.aio.AioRpcError as error:
                    codes[name] = error.code()
    assert codes == {"operator.mesh": grpc.StatusCode.OK, ROUTER: grpc.StatusCode.PERMISSION_DENIED}


async def test_the_health_port_needs_no_certificate_and_answers_nothing_else(authority: Authority) -> None:
    """A probe of a cluster has no certificate: health in plaintext on a port of its own, alone."""
    settings = config(authority.issue("server", "localhost"), allow={"*": (ROUTER,)}, health_port=0)
    async with scripted_server(Script(), settings) as server:
        assert server.health_address != server.address
        async with grpc.aio.insecure_channel(server.health_address) as probe:
            request = health_pb2.HealthCheckRequest(service=DRAFT_NAME)
            answer = await health_pb2_grpc.HealthStub(probe).Check(request, timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            for kind, failure in (await call_every_kind(probe)).items():
                assert failure is not None, kind
                assert failure.code() is grpc.StatusCode.UNIMPLEMENTED
        async with channel(server.address, tls=client_tls(authority.issue(OTHER))) as mesh_peer:
            assert (await health_pb2_grpc.HealthStub(mesh_peer).Check(request, timeout=10)).status == answer.status


async def test_a_health_port_in_use_is_named() -> None:
    async with scripted_server(Script()) as server:
        port = int(server.address.rpartition(":")[2])
        second = MeshServer(ServerConfig(health_port=port), [])
        with pytest.raises(ConfigError, match=r"server\.health_port"):
            await second.start()
        await second.stop(0)


@pytest.mark.parametrize(
    "pattern", ["specmesh.v1.VerifierService/*", f"{DRAFT_NAME}/Drafft", "grpc.channelz.v1.Channelz/*"]
)
def test_a_list_that_names_what_is_not_served_is_refused(pattern: str) -> None:
    """A slip in a method's name would protect nothing."""
    with pytest.raises(ConfigError, match="no such method here"):
        Access({pattern: (ROUTER,)}, [DRAFT_NAME, ROUTER_NAME])


def test_a_list_without_client_certificates_is_refused() -> None:
    with pytest.raises(ValidationError, match="client_ca_file"):
        ServerConfig(allow={"*": (ROUTER,)})
    with pytest.raises(ValidationError, match="pattern"):
        ServerConfig(allow={"DraftService": (ROUTER,)})


def test_common_names_and_uris_among_dns_names_are_no_identities() -> None:
    context = {
        "x509_common_name": [b"router"],
        "peer_dns": [b"a.mesh", b"spiffe://mesh/router"],
        "peer_uri": [b"x://y"],
    }
    assert peer_identities(context) == {"a.mesh", "x://y"}
    assert peer_identities({}) == frozenset()


def test_files_that_cannot_be_read_are_named_at_the_start(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"tls\.ca_file: cannot read absent"):
        check_files(ClientTls(ca_file=Path("absent")), "tls")
    folder = authority.issue("server", "localhost")
    (folder / "tls.key").write_bytes((authority.issue("other") / "tls.key").read_bytes())
    with pytest.raises(ConfigError, match="used together"):
        server_credentials(server_tls(folder))

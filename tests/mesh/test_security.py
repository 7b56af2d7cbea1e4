"""A mesh of processes in which every part has a certificate and every client a token."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from mesh_calls import arms_of, generate, refused, request, wait_ready
from mesh_processes import Service
from mesh_tables import write_tables
from pem_files import Authority, client_tls

from specmesh.runtime.streams import channel
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1 import verifier_service_pb2 as verifier_pb
from specmesh.v1.draft_service_pb2_grpc import DraftServiceStub
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub
from specmesh.v1.verifier_service_pb2_grpc import VerifierServiceStub

TEAM, OPERATOR, NEXT = "token-of-the-team", "token-of-operators", "next-token-of-the-team"
POOLS = ("good", "stale", "posing")


class Collector(grpc.GenericRpcHandler):
    """Takes whatever is exported to it, as bytes."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    async def wait_for(self, part: bytes) -> bytes:
        """All that was received, with this in it."""
        async with asyncio.timeout(20):
            while True:
                everything = b"".join(self.received)
                if part in everything:
                    return everything
                await asyncio.sleep(0.1)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._take)

    def _take(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.received.append(request)
        return b""


@dataclass
class Secured:
    """What runs, and the folder of tokens."""

    authority: Authority
    verifier: Service
    drafts: dict[str, Service]
    router: Service
    tokens: Path
    collector: Collector

    def logs(self) -> str:
        return "".join(service.log() for service in (self.verifier, self.router, *self.drafts.values()))


def settings(folder: Path, service: str) -> dict[str, object]:
    """Of a server that only routers may call."""
    return {
        "server__tls__cert_file": folder / "tls.crt",
        "server__tls__key_file": folder / "tls.key",
        "server__tls__client_ca_file": folder / "ca.crt",
        "server__allow": f'{{"specmesh.v1.{service}/*" = ["router.mesh"]}}',
        "server__health_port": 0,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One good pool, one whose certificate has expired, one that shows the certificate of another."""
    folder = tmp_path_factory.mktemp("secured")
    tables, authority = write_tables(folder, 8, seed=3), Authority(folder)
    tokens = folder / "tokens"
    tokens.mkdir()
    (tokens / "team").write_text(TEAM)
    (tokens / "operator").write_text(OPERATOR)
    certificates = {
        "verifier": authority.issue("verifier", "verifier.mesh"),
        "good": authority.issue("good", "good.mesh"),
        "stale": authority.issue("stale", "stale.mesh", expired=True),
        "posing": authority.issue("posing", "good.mesh"),
    }
    router_folder, public = authority.issue("router", "router.mesh"), authority.issue("public", "localhost")
    collector, receiver = Collector(), grpc.server(ThreadPoolExecutor(4))
    receiver.add_generic_rpc_handlers([collector])
    port = receiver.add_insecure_port("127.0.0.1:0")
    receiver.start()
    telemetry = {"telemetry__otlp_endpoint": f"http://127.0.0.1:{port}", "telemetry__sample_ratio": 1}
    with ExitStack() as stack:
        stack.callback(receiver.stop, 0)

        def start(name: str, **given: object) -> Service:
            return stack.enter_context(Service(name, folder, **given, **telemetry, telemetry__metrics_seconds=0.5))

        verifier = start(
            "verifier", model=f"table:{tables.target}", **settings(certificates["verifier"], "VerifierService")
        )
        drafts = {name: start("draft", kind="lookup", **settings(certificates[name], "DraftService")) for name in POOLS}
        router = start(
            "router",
            verifiers=[verifier.address],
            verifier_server_name="verifier.mesh",
            pools=[
                {"name": name, "addresses": [draft.address], "server_name": f"{name}.mesh"}
                for name, draft in drafts.items()
            ],
            tls__ca_file=router_folder / "ca.crt",
            tls__cert_file=router_folder / "tls.crt",
            tls__key_file=router_folder / "tls.key",
            server__tls__cert_file=public / "tls.crt",
            server__tls__key_file=public / "tls.key",
            callers=[
                {"name": "team", "token_file": str(tokens / "team")},
                {"name": "operator", "token_file": str(tokens / "operator"), "roles": ["operator"]},
            ],
            policy__name="fixed",
            policy__settings__fixed_arm="good",
        )
        yield Secured(authority, verifier, drafts, router, tokens, collector)


@asynccontextmanager
async def client(secured: Secured) -> AsyncIterator[RouterServiceStub]:
    tls = client_tls(secured.authority.folder / "public", mutual=False)
    async with channel(secured.router.address, tls=tls) as to_router:
        yield RouterServiceStub(to_router)


def bearer(token: str) -> dict[str, object]:
    return {"metadata": (("authorization", f"Bearer {token}"),)}


async def test_a_mesh_of_certificates_generates_for_a_known_client(secured: Secured) -> None:
    async with client(secured) as stub:
        await wait_ready(stub, "good", **bearer(OPERATOR))
        answer = await generate(stub, request(), **bearer(TEAM))
        assert len(answer.token_ids) == 20
        assert answer.finished is not None
        assert {pool.pool for pool in answer.finished.usage.pools} == {"good", "verifier"}


async def test_without_the_right_token_there_is_no_call(secured: Secured) -> None:
    """Missing, wrong, a part of one, one for another role: refused by the method's own rule, and nothing else told."""
    async with client(secured) as stub:
        for call in ({}, bearer("token-of-the-tea"), bearer(f"{TEAM}x"), bearer("")):
            for refusal in (
                await refused(generate(stub, request(), **call)),
                await refused(stub.ListModels(pb.ListModelsRequest(), timeout=20, **call)),
                await refused(stub.ListDrafts(pb.ListDraftsRequest(), timeout=20, **call)),
            ):
                assert refusal.code() is grpc.StatusCode.UNAUTHENTICATED
        denied = [await refused(generate(stub, request(), **bearer(OPERATOR)))]
        denied.append(await refused(arms_of(stub, **bearer(TEAM))))
        denied.append(await refused(generate(stub, request(output={"step_reports": True}), **bearer(TEAM))))
        assert {error.code() for error in denied} == {grpc.StatusCode.PERMISSION_DENIED}


async def test_drafts_and_verifiers_answer_routers_only(secured: Secured) -> None:
    """A draft's own certificate, signed by the same authority, opens no method of a draft or of a verifier."""
    tls = secured.authority.folder / "good"
    async with (
        channel(secured.verifier.address, tls=client_tls(tls, "verifier.mesh")) as to_verifier,
        channel(secured.drafts["good"].address, tls=client_tls(tls, "good.mesh")) as to_draft,
    ):
        verifier, draft = VerifierServiceStub(to_verifier), DraftServiceStub(to_draft)
        calls = [
            verifier.GetInfo(verifier_pb.VerifierServiceGetInfoRequest()),
            verifier.GetTokenizer(verifier_pb.VerifierServiceGetTokenizerRequest()),
            draft.GetInfo(draft_pb.DraftServiceGetInfoRequest()),
            *(method() for method in (verifier.Open, verifier.Verify, draft.Open, draft.Draft)),
        ]
        for call in calls:
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_pool_with_the_wrong_or_an_expired_certificate_drafts_when_it_gets_the_right_one(
    secured: Secured,
) -> None:
    """`posing` shows another pool's certificate. Nobody is restarted."""
    async with client(secured) as stub:
        await wait_ready(stub, "good", **bearer(OPERATOR))
        arms = await arms_of(stub, **bearer(OPERATOR))
        for name in ("stale", "posing"):
            assert arms[name].ready_replica_count == 0
            secured.authority.issue(name, f"{name}.mesh")
        await wait_ready(stub, *POOLS, **bearer(OPERATOR))


async def test_a_clients_token_rotates_on_a_running_router(secured: Secured) -> None:
    async with client(secured) as stub:
        new = secured.tokens / "team.new"
        new.write_text(f"{NEXT}\n")
        new.rename(secured.tokens / "team")
        async with asyncio.timeout(20):
            while True:
                call = stub.ListModels(pb.ListModelsRequest(), timeout=20, **bearer(NEXT))
                if await call.code() is grpc.StatusCode.OK:
                    break
        refusal = await refused(generate(stub, request(), **bearer(TEAM)))
        assert refusal.code() is grpc.StatusCode.UNAUTHENTICATED
        await generate(stub, request(), **bearer(NEXT))


async def test_no_log_span_or_metric_holds_a_secret(secured: Secured) -> None:
    """Tokens right and wrong, a peer that is refused, keys: of all that, nothing is written down."""
    token, wrong = (secured.tokens / "team").read_text().strip(), "token-of-somebody-else"
    async with client(secured) as stub:
        await generate(stub, request(), **bearer(token))
        await refused(generate(stub, request(), **bearer(wrong)))
    peer = client_tls(secured.authority.folder / "good", "verifier.mesh")
    async with channel(secured.verifier.address, tls=peer) as to_verifier:
        await refused(VerifierServiceStub(to_verifier).GetInfo(verifier_pb.VerifierServiceGetInfoRequest()))
    await secured.collector.wait_for(b"RouterService/Generate")
    exported = await secured.collector.wait_for(b"specmesh.arm.demand")
    logs = secured.logs()
    assert "peer refused" in logs
    assert "good.mesh" in logs
    for secret in (TEAM, OPERATOR, NEXT, wrong, "PRIVATE", "Bearer"):
        assert secret not in logs
        assert secret.encode() not in exported

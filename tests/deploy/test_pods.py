"""A release as it would run: the rendered commands and configuration files start the real services, which generate."""

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from chart_values import TLS
from helm_charts import needs_tools, of_kind, render
from mesh_calls import generate, refused, request, wait_ready
from mesh_tables import write_tables
from pem_files import Authority, client_tls
from pod_processes import Node, PodProcess, deployed, watchdog

from specmesh.runtime.errors import Draining
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.streams import channel
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

pytestmark = [needs_tools, pytest.mark.slow]
VERIFIER, ROUTER = "mesh-specmesh-verifier-main", "mesh-specmesh-router"
DRAFTS = {name: f"mesh-specmesh-draft-{name}" for name in ("near", "lookup")}
TOKEN, TENANTS_TOKEN = "token-of-the-team", "token-of-a-tenant"
PARTNER = "draft.partner.example.com"
TABLES = {
    "volumes": [{"name": "tables", "persistentVolumeClaim": {"claimName": "tables"}}],
    "volumeMounts": [{"name": "tables", "mountPath": "/srv/tables", "readOnly": True}],
}
SCALING = {"min": 1, "max": 3, "target": 5}
SCALED = {"autoscaling": {"enabled": True, **SCALING}}
VALUES = {
    "models": {
        "target": {"path": "table:/srv/tables/target.npz"},
        "near": {"pvc": {"claim": "tables", "path": "near.npz"}},
    },
    # 40 ms a step: a text lasts long enough to be drained.
    "verifiers": [{"name": "main", "model": "target", "config": {"table": {"delay_ms": 40}}, **TABLES, **SCALED}],
    "drafts": [
        {"name": "near", "kind": "table", "model": "near"},
        {"name": "lookup", "kind": "lookup", "trust": "untrusted", "tls": {"secret": "partner", "serverName": PARTNER}},
        {"name": "absent", "kind": "lookup", "autoscaling": {"enabled": True, "kind": "keda", **SCALING, "min": 0}},
    ],
    "router": {
        "replicas": 2,
        "preStopSeconds": 1,
        "drainSeconds": 20,
        "config": {
            "discovery_seconds": 0.5,
            "drafts": {"block_deadline_ms": 2000},
            "sessions": {"hold_out": 0},
        },
    },
    "tls": TLS,
    "auth": {
        "existingSecret": "tokens",
        "callers": [
            {"name": "team", "roles": ["client", "operator", "debug"]},
            {"name": "tenant", "key": "of-the-tenant", "pools": ["near"]},
        ],
    },
    "test": {"tokens": "0,1", "tokenKey": "team", "timeoutSeconds": 60},
    # Nobody collects there: that may cost nothing, and hold up no drain.
    "telemetry": {"otlpEndpoint": "http://127.0.0.1:9", "prometheusPort": 9464, "sampleRatio": 1},
    "networkPolicy": {"scrapeFrom": [{"namespaceSelector": {"matchLabels": {"team": "observability"}}}]},
    "autoscaling": {"prometheusAddress": "http://prometheus:9090"},
}


@dataclass
class Release:
    """What runs."""

    node: Node
    verifier: PodProcess
    drafts: dict[str, PodProcess]
    routers: list[PodProcess]

    @property
    def pods(self) -> list[PodProcess]:
        return [self.verifier, *self.drafts.values(), *self.routers]


def node_with_secrets(folder: Path) -> Node:
    """Objects of the release, its secrets and its claim."""
    authority, tokens = Authority(folder), folder / "tokens"
    tokens.mkdir()
    (tokens / "team").write_text(f"{TOKEN}\n")
    (tokens / "of-the-tenant").write_text(f"{TENANTS_TOKEN}\n")
    secrets = {
        "public": authority.issue("public", "localhost", f"{ROUTER}.ai.svc"),
        "mesh": authority.issue("mesh", f"{ROUTER}.ai.svc"),
        "v": authority.issue("v", "mesh-specmesh-verifier.ai.svc"),
        "d": authority.issue("d", f"{DRAFTS['near']}.ai.svc"),
        "partner": authority.issue("partner", PARTNER),
        "tokens": tokens,
    }
    write_tables(folder, 8, seed=5)
    return Node(folder, render(VALUES), secrets, {"tables": folder})


def start(node: Node, deployment: str, address: str, instance: str = "") -> PodProcess:
    spec, main = deployed(node.objects, deployment)
    prefix = f"SPECMESH_{main['name'].upper()}"
    hosts = [(f"{prefix}__{key}", address) for key in ("SERVER__HOST", "TELEMETRY__PROMETHEUS_HOST")]
    return PodProcess(node, deployment + instance, spec, address, *hosts)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """One verifier, two pools of drafts, two routers; every pod ready by its own probes."""
    node = node_with_secrets(tmp_path_factory.mktemp("release"))
    addresses = {name: node.give_address(f"{name}.ai.svc") for name in (VERIFIER, *DRAFTS.values())}
    routers = [node.give_address(f"{ROUTER}.ai.svc"), node.give_address("second")]
    running = Release(
        node,
        start(node, VERIFIER, addresses[VERIFIER]),
        {pool: start(node, name, addresses[name]) for pool, name in DRAFTS.items()},
        [start(node, ROUTER, address, f"-{number}") for number, address in enumerate(routers)],
    )
    with watchdog(240, *running.pods):
        try:
            asyncio.run(all_ready(running))
            yield running
        finally:
            for each in running.pods:
                each.close()


async def all_ready(running: Release) -> None:
    await asyncio.gather(*(each.ready() for each in running.pods))


@asynccontextmanager
async def client(running: Release, number: int) -> AsyncIterator[RouterServiceStub]:
    tls = client_tls(running.node.secrets["public"], mutual=False)
    async with channel(f"{running.routers[number].address}:50050", tls=tls) as to_router:
        yield RouterServiceStub(to_router)


BEARER = {"metadata": (("authorization", f"Bearer {TOKEN}"),)}


async def test_the_rendered_commands_start_services_that_generate(release: Release) -> None:
    """With certificates, tokens, a read-only root, no root user; every pool is found by its name and drafts."""
    for number in range(2):
        async with client(release, number) as stub:
            await wait_ready(stub, *DRAFTS, **BEARER)
            for pool in DRAFTS:
                answer = await generate(stub, request(arms=[pool], block_length=4), **BEARER)
                assert len(answer.token_ids) == 20
                assert answer.finished is not None
                assert {each.pool for each in answer.finished.usage.pools} == {pool, "verifier"}
            assert (await refused(generate(stub, request()))).code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_tenant_reaches_its_own_pools_only(release: Release) -> None:
    tenant = {"metadata": (("authorization", f"Bearer {TENANTS_TOKEN}"),)}
    async with client(release, 0) as stub:
        answer = await generate(stub, request(arms=["near"], block_length=4), **tenant)
        assert answer.finished is not None
        assert {each.pool for each in answer.finished.usage.pools} == {"near", "verifier"}
        error = await refused(generate(stub, request(arms=["lookup"]), **tenant))
        assert from_rpc_error(error).field == "draft.arms[0]"


async def test_what_autoscaling_asks_for_is_exported(release: Release) -> None:
    """By the verifier, and by routers also for a pool that has no replica."""
    [scaled] = of_kind(release.node.objects, "ScaledObject").values()
    [scaler] = of_kind(release.node.objects, "HorizontalPodAutoscaler").values()
    [asked] = re.findall(r"rate\((\w+)\{.*(specmesh_pool=\"\w+\")", scaled["spec"]["triggers"][0]["metadata"]["query"])
    assert asked == ("specmesh_arm_demand_total", 'specmesh_pool="absent"')

    def demand() -> float:
        [line] = [line for line in metrics(release.routers[0]) if line.startswith(asked[0]) and asked[1] in line]
        return float(line.split()[-1])

    async with client(release, 0) as stub:
        for _ in range(100):  # one step in 32 is looked at, by lot
            await generate(stub, request(max_output_tokens=10), **BEARER)
            if demand() >= 1:
                break
    assert demand() >= 1
    queue = scaler["spec"]["metrics"][0]["external"]["metric"]["name"]
    assert [line for line in metrics(release.verifier) if line.startswith(queue)]


def metrics(pod: PodProcess) -> list[str]:
    ports = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
    with urllib.request.urlopen(f"http://{pod.address}:{ports['metrics']}/metrics", timeout=20) as answer:
        return answer.read().decode().splitlines()


def test_services_cannot_write_outside_their_volumes(release: Release) -> None:
    """As seen from inside: the service's own view of its mounts."""
    for each in release.pods:
        mounts = Path(f"/proc/{each.pid}/mounts").read_text().splitlines()
        options = {line.split()[1]: line.split()[3].split(",") for line in mounts}
        assert "ro" in options["/"], each.name
        status = Path(f"/proc/{each.pid}/status").read_text()
        assert "Uid:\t10001\t10001\t10001\t10001\n" in status
        assert "NoNewPrivs:\t1\n" in status
        # One is added by the test, for reading what the pod is made of.
        assert "CapBnd:\t0000000000000004\n" in status
        assert status.partition("NSpid:")[2].splitlines()[0].split()[-1] == "1", "a container's first process"


def test_helm_test_generates_a_token(release: Release) -> None:
    """The pod of `helm test`, with its own command, certificates and token."""
    [test] = of_kind(release.node.objects, "Pod").values()
    pod = PodProcess(release.node, "helm-test", test["spec"], "")
    try:
        assert pod.process.wait(60) == 0, pod.log()
        assert pod.output().strip()
    finally:
        pod.close()


async def test_c32_a_router_ends_as_the_chart_ends_it(release: Release) -> None:
    """C32: preStop at token 5 of 50, then SIGTERM: all 50 arrive, new calls are UNAVAILABLE, exit 0 in time."""
    async with client(release, 0) as stub, client(release, 1) as other:
        await wait_ready(stub, *DRAFTS, **BEARER)
        stream = stub.Generate(request(max_output_tokens=50, arms=[]), timeout=60, **BEARER)
        received: list[int] = []
        while len(received) < 5:
            received += (await stream.read()).delta.token_ids
        ending = asyncio.ensure_future(asyncio.to_thread(release.routers[0].end))
        while not isinstance(refusal := await outcome(stub), Draining):
            assert refusal is None, "before SIGTERM calls are served"
        while (event := await stream.read()) is not grpc.aio.EOF:
            received += event.delta.token_ids
        status, seconds = await ending
        assert (len(received), status) == (50, 0)
        assert seconds < 20
        await generate(other, request(), **BEARER)


async def outcome(stub: RouterServiceStub) -> Exception | None:
    try:
        await generate(stub, request(max_output_tokens=1, arms=[]), **BEARER)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    return None


async def test_c32_a_verifier_that_ends_finishes_its_sessions(release: Release) -> None:
    """C32: its address stays behind the name while it drains, so that routers keep the stream; nothing is cut."""
    async with client(release, 1) as stub:
        stream = stub.Generate(request(max_output_tokens=50, arms=[]), timeout=60, **BEARER)
        received: list[int] = []
        while len(received) < 5:
            received += (await stream.read()).delta.token_ids
        ending = asyncio.ensure_future(asyncio.to_thread(release.verifier.end))
        while (event := await stream.read()) is not grpc.aio.EOF:
            received += event.delta.token_ids
        status, _ = await ending
        assert (len(received), status) == (50, 0)
        error = await refused(generate(stub, request(), **BEARER))
        assert error.code() is grpc.StatusCode.UNAVAILABLE


def test_no_pod_logs_a_secret(release: Release) -> None:
    logs = "".join(each.log() for each in release.pods)
    assert '"level"' in logs
    for secret in (TOKEN, TENANTS_TOKEN, "PRIVATE", "Bearer"):
        assert secret not in logs

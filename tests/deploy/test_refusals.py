"""Values that mean nothing, or something else than they seem to, are refused before anything is installed."""

from typing import Any

import pytest
from chart_values import GPU_DRAFT, MINIMAL, SHA, TLS, values, verifier
from helm_charts import Refused, helm, needs_tools, render

pytestmark = needs_tools
LOOKUP = {"name": "lookup", "kind": "lookup"}
CALLER = {"name": "team"}

SCHEMA: dict[str, tuple[dict[str, Any], str]] = {
    "nothing at all": ({}, "verifiers"),
    "no verifier": (values(verifiers=[]), "verifiers"),
    "a key that is not there": (values(replicaCount=3), "replicaCount"),
    "a slip in a pool": (values({**GPU_DRAFT, "nodeselector": {}}), "nodeselector"),
    "a kind that is not there": (values({"name": "x", "kind": "eagle", "model": "target"}), "drafts/0"),
    "the faulty draft of the tests": (values({"name": "x", "kind": "faulty"}), "drafts/0"),
    "a draft without a model": (values({"name": "x", "kind": "hf"}), "model"),
    "a lookup with a model": (values({**LOOKUP, "model": "target"}), "drafts/0"),
    "a lookup on a GPU": (values({**LOOKUP, "gpu": {"count": 1}}), "drafts/0"),
    "a quantised table": (values({"name": "t", "kind": "table", "model": "target", "quantization": "nf4"}), "drafts/0"),
    "a name that is none": (values({**LOOKUP, "name": "My_Pool"}), "name"),
    "a name too long": (values({**LOOKUP, "name": "p" * 25}), "name"),
    "trust of another kind": (values({**LOOKUP, "trust": "some"}), "trust"),
    "less than no replicas": (values({**LOOKUP, "replicas": -1}), "replicas"),
    "half a replica": (values({**LOOKUP, "replicas": 1.5}), "replicas"),
    "no router": (values(router={"replicas": 0}), "replicas"),
    "a GPU resource without a domain": (values({**GPU_DRAFT, "gpu": {"count": 1, "resource": "gpu"}}), "resource"),
    "a count and a claim": (values({**GPU_DRAFT, "gpu": {"count": 1, "claim": {"deviceClassName": "x"}}}), "gpu"),
    "a quantisation that is not there": (values({**GPU_DRAFT, "quantization": "int4"}), "quantization"),
    "memory without a unit": (values(verifiers=verifier(kvMemory="40")), "kvMemory"),
    "an unpinned image of weights": (values(models={"target": {"image": "registry/weights:latest"}}), "target"),
    "two sources of weights": (values(models={"target": {"hub": "a/b", "path": "c"}}), "target"),
    "a digest that is none": (values(models={"target": {"path": "c", "digest": "latest"}}), "digest"),
    "a path of the host": (values({**LOOKUP, "volumes": [{"name": "x", "hostPath": {"path": "/"}}]}), "volumes"),
    "scaling without bounds": (values({**LOOKUP, "autoscaling": {"enabled": True}}), "autoscaling"),
    "an HPA from zero": (
        values({**LOOKUP, "autoscaling": {"enabled": True, "min": 0, "max": 2, "target": 1}}), "autoscaling",
    ),
    "running as root": (values(podSecurity={"runAsUser": 0}), "runAsUser"),
    "a role that is not there": (values(auth={"callers": [{**CALLER, "roles": ["admin"]}]}), "roles"),
    "a token among the values": (values(auth={"callers": [{**CALLER, "token": "secret"}]}), "token"),
    "a privileged port for metrics": (values(telemetry={"prometheusPort": 80}), "prometheusPort"),
    "a collector without a port": (values(telemetry={"otlpEndpoint": "http://collector"}), "otlpEndpoint"),
}  # fmt: skip

CHECKS: dict[str, tuple[dict[str, Any], str]] = {
    "two pools of one name": (values(LOOKUP, LOOKUP), "drafts: two pools are called lookup"),
    "two verifiers of one name": (values(verifiers=verifier() * 2), "verifiers: two pools are called main"),
    "a model that is not there": (values({**GPU_DRAFT, "model": "other"}), "models has no other"),
    "quantised weights over two GPUs": (
        values(verifiers=verifier(gpu={"count": 2}, quantization="nf4")), "cannot be divided among several GPUs",
    ),
    "two targets": (
        values(
            models={"target": {"path": "/a"}, "second": {"path": "/b"}},
            verifiers=[*verifier(), {"name": "two", "model": "second"}],
        ),
        "one release serves one model",
    ),
    "a key that the chart sets": (
        values({**LOOKUP, "config": {"server": {"port": 1}}}), "drafts lookup.config: server.port is set by the chart",
    ),
    "pools beside the chart's": (values(router={"config": {"pools": []}}), "router.config: pools is set by the chart"),
    "a null": (values({**LOOKUP, "config": {"limits": {"max_row": None}}}), "null has no meaning"),
    "TLS without certificates": (values(tls={"enabled": True}), "needs tls.draftSecret"),
    "TLS without the router's": (
        values(tls={"enabled": True, "draftSecret": "d", "verifierSecret": "v"}), "needs tls.routerSecret",
    ),
    "client certificates without TLS": (values(tls={"clientCertificates": True}), "needs tls.enabled"),
    "a caller's pool that is not there": (
        values(auth={"existingSecret": "t", "callers": [{**CALLER, "pools": ["x"]}]}), "there is no draft pool x",
    ),
    "a token without a secret": (values(auth={"callers": [CALLER]}), "needs auth.existingSecret"),
    "a certificate that nobody asks for": (
        values(auth={"callers": [{**CALLER, "identities": ["x"]}]}, tls=TLS), "need tls.clientCertificates",
    ),
    "nobody to test as": (values(auth={"existingSecret": "t", "callers": [CALLER]}), "test.tokenKey"),
    "the hub behind the policy": (values(models={"target": {"hub": "a/b"}}), "allowHub"),
    "scaling by metrics that nobody exports": (
        values({**LOOKUP, "autoscaling": {"enabled": True, "min": 1, "max": 2, "target": 1}}),
        "autoscaling needs telemetry.prometheusPort",
    ),
    "KEDA without Prometheus": (
        values(
            {**LOOKUP, "autoscaling": {"enabled": True, "kind": "keda", "min": 0, "max": 2, "target": 1}},
            telemetry={"prometheusPort": 9464},
        ),
        "autoscaling.prometheusAddress",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "where"), SCHEMA.values(), ids=SCHEMA)
def test_the_schema_refuses_and_says_where(given: dict[str, Any], where: str) -> None:
    with pytest.raises(Refused, match="don't meet the specifications of the schema") as caught:
        render(given)
    assert where in str(caught.value)


@pytest.mark.parametrize(("given", "message"), CHECKS.values(), ids=CHECKS)
def test_what_contradicts_itself_is_refused_with_a_reason(given: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused) as caught:
        render(given)
    assert message in str(caught.value)


def test_a_claim_is_refused_where_the_cluster_cannot_keep_it() -> None:
    given = values({**GPU_DRAFT, "gpu": {"claim": {"deviceClassName": "gpu.example.com"}}})
    with pytest.raises(Refused, match=r"Kubernetes 1\.34"):
        render(given, version="1.33.0")


def test_an_old_cluster_is_refused() -> None:
    with pytest.raises(Refused, match="kubeVersion"):
        render(MINIMAL, version="1.26.0")


def test_the_minimal_values_are_enough() -> None:
    """The refusals above are of their one fault, and nothing else is missing."""
    assert render(MINIMAL)
    assert render(values(models={"target": {"path": "/x", "digest": SHA}}))


def test_notes_say_what_was_installed_and_what_is_open() -> None:
    def notes(given: dict[str, Any]) -> str:
        arguments = ["install", "mesh", "-n", "ai", "--dry-run=client", "deploy/helm/specmesh"]
        return helm(*arguments, values=given).partition("NOTES:")[2]

    open_mesh = notes(values({**GPU_DRAFT, "trust": "untrusted", "replicas": 3}))
    for said in (
        "main: 1 of target",
        "small: 3 of kind hf, model target, not trusted",
        "One verifier: its rollout needs no spare GPU",
        "new ones get UNAVAILABLE",
        "TLS is off",
        "No callers are configured",
    ):
        assert said in open_mesh
    closed = notes(
        values(
            tls=TLS,
            auth={"existingSecret": "t", "callers": [CALLER]},
            test={"tokenKey": "team"},
            verifiers=verifier(replicas=2),
        )
    )
    for left_out in ("TLS is off", "No callers", "One verifier", "Network policies are off"):
        assert left_out not in closed
    assert "Rollouts need no spare GPU" in closed

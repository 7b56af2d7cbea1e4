"""A platform team's values, written from values.yaml and the guide alone: do they get what they meant?"""

import tomllib
from typing import Any

import pytest
from chart_values import SHA
from helm_charts import check_schema, config_of, container, needs_tools, of_kind, one, pod, render

from specmesh.draft.config import DraftConfig
from specmesh.router.config import RouterConfig
from specmesh.verifier.config import VerifierConfig

pytestmark = needs_tools
L4 = {"nvidia.com/gpu.product": "NVIDIA-L4"}
T4_NODES = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["Tesla-T4"]}]}
            ]
        }
    }
}
KEDA = {"enabled": True, "kind": "keda"}
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
VALUES: dict[str, Any] = {
    "models": {
        "llama8b": {"pvc": {"claim": "weights", "path": "llama-8b"}, "digest": SHA},
        "llama1b": {"pvc": {"claim": "weights", "path": "llama-1b"}},
        "coder": {"image": f"registry.example.com/weights/coder@sha256:{SHA}"},
        "support": {"pvc": {"claim": "weights", "path": "tables/support.npz"}},
        "partner": {"pvc": {"claim": "partner", "path": "model"}},
    },
    "verifiers": [
        {
            "name": "h100",
            "model": "llama8b",
            "gpu": {"count": 1},
            "dtype": "bfloat16",
            "kvMemory": "45GiB",
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "extraTolerations": [{"key": "dedicated", "operator": "Equal", "value": "inference"}],
            "autoscaling": {**KEDA, "min": 2, "max": 6, "target": 4},
        }
    ],
    "drafts": [
        {
            "name": "l4", "kind": "hf", "model": "llama1b", "gpu": {"count": 1}, "kvMemory": "8GiB", "nodeSelector": L4,
            "autoscaling": {**KEDA, "min": 0, "max": 8, "target": 150},
        },
        {
            "name": "t4", "kind": "hf", "model": "llama1b", "gpu": {"count": 1}, "kvMemory": "6GiB", "replicas": 3,
            "quantization": "int8", "runtimeClassName": "nvidia", "affinity": T4_NODES,
        },
        {
            "name": "mig", "kind": "hf", "model": "coder", "kvMemory": "3GiB",
            "gpu": {"count": 1, "resource": "nvidia.com/mig-1g.10gb"},
            "tolerations": [{"key": "mig", "operator": "Exists"}],
        },
        {"name": "ngram", "kind": "lookup", "replicas": 2, "nodeSelector": {"pool": "cpu"}},
        {"name": "support", "kind": "table", "model": "support", "nodeSelector": {"pool": "cpu"}},
        {
            "name": "partner", "kind": "hf", "model": "partner", "trust": "untrusted", "gpu": {"count": 1},
            "kvMemory": "4GiB", "nodeSelector": L4, "tls": {"secret": "partner", "serverName": "draft.partner.example"},
        },
    ],
    "router": {"nodeSelector": {"pool": "cpu"}, "autoscaling": {"enabled": True, "max": 12}},
    "tls": {
        "enabled": True, "routerSecret": "router", "meshSecret": "mesh", "verifierSecret": "verifier",
        "draftSecret": "draft",
    },
    "auth": {
        "existingSecret": "tokens",
        "callers": [
            {"name": "legal", "pools": ["l4", "t4", "ngram"]},
            {"name": "coding", "pools": ["mig", "ngram", "support", "partner"], "maxPriority": 3},
        ],
    },
    "test": {"tokenKey": "legal"},
    "telemetry": {"prometheusPort": 9464},
    "networkPolicy": {"scrapeFrom": MONITORING},
    "autoscaling": {"prometheusAddress": "http://prometheus.monitoring:9090"},
}  # fmt: skip
GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    rendered = render(VALUES)
    check_schema(rendered, "1.37.0")
    return rendered


def test_every_pool_is_where_it_was_meant_to_be(objects: list[dict[str, Any]]) -> None:
    """GPU, place, tolerations and image of each; no CPU pool has any of a GPU's."""
    expected: dict[str, tuple[dict[str, int], object, list[dict[str, str]]]] = {
        "verifier-h100": (
            {"nvidia.com/gpu": 1}, VALUES["verifiers"][0]["nodeSelector"],
            [GPU_TAINT, {"key": "dedicated", "operator": "Equal", "value": "inference"}],
        ),
        "draft-l4": ({"nvidia.com/gpu": 1}, L4, [GPU_TAINT]),
        "draft-t4": ({"nvidia.com/gpu": 1}, None, [GPU_TAINT]),
        "draft-mig": ({"nvidia.com/mig-1g.10gb": 1}, None, [{"key": "mig", "operator": "Exists"}]),
        "draft-ngram": ({}, {"pool": "cpu"}, []),
        "draft-support": ({}, {"pool": "cpu"}, []),
        "draft-partner": ({"nvidia.com/gpu": 1}, L4, [GPU_TAINT]),
    }  # fmt: skip
    for name, (gpus, selector, tolerations) in expected.items():
        deployment = one(objects, "Deployment", name)
        assert container(deployment)["resources"].get("limits", {}) == gpus
        assert pod(deployment).get("nodeSelector") == selector
        assert pod(deployment).get("tolerations", []) == tolerations
        image = "verifier" if name.startswith("verifier") else "draft" if gpus else "cpu"
        assert container(deployment)["image"] == f"specmesh/{image}:0.1.0"
    assert pod(one(objects, "Deployment", "draft-t4"))["affinity"] == T4_NODES
    assert pod(one(objects, "Deployment", "draft-t4"))["runtimeClassName"] == "nvidia"


def test_every_service_is_told_what_was_meant(objects: list[dict[str, Any]]) -> None:
    verifier = VerifierConfig.model_validate(tomllib.loads(config_of(objects, "verifier-h100")))
    assert (verifier.model_digest, verifier.dtype, verifier.kv_memory) == (SHA, "bfloat16", 45 * 2**30)
    t4 = DraftConfig.model_validate(tomllib.loads(config_of(objects, "draft-t4")))
    assert t4.drafter["quantization"] == "int8"
    assert t4.drafter["kv_memory_bytes"] == 6 * 2**30
    table = DraftConfig.model_validate(tomllib.loads(config_of(objects, "draft-support")))
    assert (table.kind, table.drafter) == ("table", {"path": "/srv/models/support"})


def test_tenants_reach_their_pools_and_the_partner_biases_nothing(objects: list[dict[str, Any]]) -> None:
    router = RouterConfig.model_validate(tomllib.loads(config_of(objects, "router")))
    assert {caller.name: caller.pools for caller in router.callers} == {
        "legal": ("l4", "t4", "ngram"),
        "coding": ("mig", "ngram", "support", "partner"),
    }
    assert [pool.name for pool in router.pools if pool.trust == "untrusted"] == ["partner"]
    names = {pool.name: pool.server_name for pool in router.pools}
    assert names["partner"] == "draft.partner.example"
    assert names["l4"] == "mesh-specmesh-draft-l4.ai.svc"
    secrets = {
        name: volume["secret"]["secretName"]
        for name, deployment in of_kind(objects, "Deployment").items()
        for volume in pod(deployment)["volumes"]
        if volume["name"] == "tls"
    }
    assert [name for name, secret in secrets.items() if secret == "partner"] == ["mesh-specmesh-draft-partner"]


def test_what_scales_scales_by_what_it_was_meant_to(objects: list[dict[str, Any]]) -> None:
    bounds = {
        name: (each["spec"]["minReplicaCount"], each["spec"]["maxReplicaCount"])
        for name, each in of_kind(objects, "ScaledObject").items()
    }
    assert bounds == {"mesh-specmesh-verifier-h100": (2, 6), "mesh-specmesh-draft-l4": (0, 8)}
    router = one(objects, "HorizontalPodAutoscaler", "router")["spec"]
    assert (router["minReplicas"], router["maxReplicas"]) == (2, 12)
    for policy in of_kind(objects, "NetworkPolicy").values():
        [metrics] = [rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "metrics"]
        assert metrics["from"] == MONITORING

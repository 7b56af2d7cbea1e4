"""Values for tests of the chart."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

SHA = "0123456789abcdef" * 4
MINIMAL: dict[str, Any] = {
    "models": {"target": {"pvc": {"claim": "weights", "path": "target"}}},
    "verifiers": [{"name": "main", "model": "target"}],
    "drafts": [{"name": "lookup", "kind": "lookup"}],
}
GPU_DRAFT: dict[str, Any] = {"name": "small", "kind": "hf", "model": "target", "gpu": {"count": 1}}
METRICS: dict[str, Any] = {
    "telemetry": {"prometheusPort": 9464},
    "autoscaling": {"prometheusAddress": "http://prometheus:9090"},
    "networkPolicy": {"scrapeFrom": [{"namespaceSelector": {}}]},
}


def values(*drafts: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The minimal values with these drafts; a mapping is merged into the one that is there."""
    result = deepcopy(MINIMAL)
    if drafts:
        result["drafts"] = [dict(each) for each in drafts]
    for key, change in changes.items():
        merge = isinstance(change, Mapping) and isinstance(result.get(key), dict)
        result[key] = {**result[key], **change} if merge else change
    return result


def verifier(**changes: Any) -> list[dict[str, Any]]:
    """One verifier pool."""
    return [{"name": "main", "model": "target"} | changes]


TLS = {"enabled": True, "routerSecret": "public", "meshSecret": "mesh", "verifierSecret": "v", "draftSecret": "d"}
EVERYTHING: dict[str, Any] = values(
    {
        **GPU_DRAFT,
        "name": "full",
        "model": "small",
        "trust": "untrusted",
        "quantization": "nf4",
        "dtype": "bfloat16",
        "kvMemory": "1.5GiB",
        "gpu": {"count": 1, "resource": "nvidia.com/mig-1g.10gb"},
        "runtimeClassName": "nvidia",
        "nodeSelector": {"gpu": "l4"},
        "affinity": {"nodeAffinity": {}},
        "extraTolerations": [{"key": "spot", "operator": "Exists"}],
        "topologySpread": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "priorityClassName": "low",
        "env": [{"name": "OMP_NUM_THREADS", "value": "2"}],
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "volumeMounts": [{"name": "extra", "mountPath": "/srv/extra"}],
        "podLabels": {"team": "ml"},
        "podAnnotations": {"note": "x"},
        "rollout": {"maxSurge": "25%", "maxUnavailable": 0},
        "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "8Gi"}},
        "startupSeconds": 61,
        "drainSeconds": 7,
        "egress": [{"ports": [{"port": 8443, "protocol": "TCP"}]}],
        "config": {"limits": {"max_batch": 8, "row_mass": 0.99, "max_context_bytes": 268435456}, "stopping": {}},
        "autoscaling": {"enabled": True, "kind": "keda", "min": 0, "max": 4, "target": 20.5},
        "tls": {"secret": "own", "serverName": "own.example.com"},
    },
    {"name": "table", "kind": "table", "model": "phrases", "replicas": 0},
    {"name": "claimed", "kind": "hf", "model": "hub", "gpu": {"claim": {"deviceClassName": "gpu.example.com"}}},
    {"name": "lookup", "kind": "lookup", "autoscaling": {"enabled": True, "min": 1, "max": 3, "target": 5}},
    models={
        "target": {"image": f"registry.example.com/target@sha256:{SHA}", "digest": SHA},
        "small": {"image": f"registry.example.com/small@sha256:{SHA}", "digest": SHA},
        "phrases": {"path": "/srv/extra/phrases.npz"},
        "hub": {"hub": "org/model"},
    },
    verifiers=[
        {
            "name": "a",
            "model": "target",
            "gpu": {"count": 2},
            "kvMemory": "1.5GiB",
            "autoscaling": {"enabled": True, "min": 1, "max": 8, "target": 4},
        },
        {"name": "b", "model": "target", "replicas": 2},
    ],
    router={
        "autoscaling": {"enabled": True, "min": 2, "max": 9, "target": 60},
        "from": [{"podSelector": {}}],
        "service": {"type": "LoadBalancer", "annotations": {"internal": "true"}},
    },
    tls=TLS | {"clientCertificates": True},
    auth={
        "existingSecret": "tokens",
        "callers": [
            {
                "name": "team",
                "pools": ["lookup"],
                "roles": ["client"],
                "maxPriority": 1,
                "maxSessions": 3,
                "maxTokensPerMinute": 9000000,
            },
            {"name": "job", "identities": ["job.example.com"]},
        ],
    },
    hubToken={"existingSecret": "hub"},
    networkPolicy={"allowHub": True, "scrapeFrom": [{"namespaceSelector": {}}], "otlpTo": [{"podSelector": {}}]},
    telemetry={"otlpEndpoint": "http://collector:4317", "prometheusPort": 9464},
    autoscaling={"prometheusAddress": "http://prometheus:9090"},
    imagePullSecrets=[{"name": "pull"}],
    images={"router": {"repository": "r", "digest": f"sha256:{SHA}"}},
    test={"tokenKey": "team"},
)
"""Every value that changes what is rendered, once."""

"""C34 and what else a pool is promised: its place, its GPU, its model, its rollout, its scaling."""

import re
from typing import Any

import pytest
from chart_values import EVERYTHING, GPU_DRAFT, METRICS, SHA, values, verifier
from helm_charts import (
    CHART,
    VERSIONS,
    check_schema,
    config_of,
    container,
    load,
    needs_tools,
    of_kind,
    one,
    pod,
    render,
)

from specmesh.runtime.telemetry.names import ARM_DEMAND, POOL, VERIFIER_QUEUE, prometheus_label
from specmesh.runtime.telemetry.names import METRICS as DECLARED

pytestmark = needs_tools
DEFAULT_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
SPOT = {"key": "spot", "operator": "Exists"}


def test_c34_each_pool_has_its_own_place_and_gpu() -> None:
    """C34: selector, tolerations, GPU count and resource, runtime class: a pool's own, and nobody else's."""
    other = {
        **GPU_DRAFT,
        "name": "other",
        "gpu": {"count": 2, "resource": "example.com/slice"},
        "nodeSelector": {"x": "y"},
    }
    objects = render(values({**GPU_DRAFT, "runtimeClassName": "nvidia", "nodeSelector": {"gpu": "t4"}}, other))
    small, large = one(objects, "Deployment", "draft-small"), one(objects, "Deployment", "draft-other")
    assert pod(small)["nodeSelector"] == {"gpu": "t4"}
    assert pod(small)["runtimeClassName"] == "nvidia"
    assert container(small)["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert pod(large)["nodeSelector"] == {"x": "y"}
    assert "runtimeClassName" not in pod(large)
    assert container(large)["resources"]["limits"] == {"example.com/slice": 2}
    assert "nodeSelector" not in pod(one(objects, "Deployment", "verifier-main"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [DEFAULT_TOLERATION]),
        ({"tolerations": []}, None),
        ({"tolerations": [SPOT]}, [SPOT]),
        ({"extraTolerations": [SPOT]}, [DEFAULT_TOLERATION, SPOT]),
        ({"tolerations": [], "extraTolerations": [SPOT]}, [SPOT]),
    ],
)
def test_c34_an_empty_list_removes_the_default_and_a_list_replaces_it(given: dict[str, Any], expected: object) -> None:
    """C34: and `extraTolerations` adds to what there is."""
    deployment = one(render(values({**GPU_DRAFT, **given})), "Deployment", "draft-small")
    assert pod(deployment).get("tolerations") == expected


def test_c34_a_cpu_draft_asks_for_no_gpu_and_tolerates_no_gpu_node() -> None:
    objects = render(values({"name": "a", "kind": "lookup"}, {**GPU_DRAFT, "name": "b", "gpu": {"count": 0}}))
    for name in ("draft-a", "draft-b", "verifier-main", "router"):
        deployment = one(objects, "Deployment", name)
        assert "gpu" not in str(container(deployment).get("resources"))
        assert "tolerations" not in pod(deployment)
        assert "resourceClaims" not in pod(deployment)
    assert "device" not in config_of(objects, "draft-b")
    assert container(one(objects, "Deployment", "draft-b"))["image"] == "specmesh/cpu:0.1.0"


def test_c34_no_two_deployments_share_a_selector() -> None:
    """C34: nor does the selector of one match the pods of another; services, budgets and policies follow them."""
    objects = render(EVERYTHING)
    deployments = of_kind(objects, "Deployment")
    for name, deployment in deployments.items():
        selector = deployment["spec"]["selector"]["matchLabels"].items()
        matched = [other for other, each in deployments.items() if selector <= labels(each).items()]
        assert matched == [name]
        for kind, path in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
            assert of_kind(objects, kind)[name]["spec"][path] == {"matchLabels": dict(selector)}
        assert of_kind(objects, "Service")[name]["spec"]["selector"] == dict(selector)


def labels(deployment: dict[str, Any]) -> dict[str, str]:
    return deployment["spec"]["template"]["metadata"]["labels"]


def test_c34_a_rollout_needs_no_spare_gpu_unless_asked_to() -> None:
    """C34: components with a GPU end the old pod first; the others start the new one first."""
    claimed = {**GPU_DRAFT, "name": "claimed", "gpu": {"claim": {"deviceClassName": "gpu.example.com"}}}
    asked = {**GPU_DRAFT, "name": "asked", "rollout": {"maxSurge": 1, "maxUnavailable": 0}}
    cpu = {"name": "cpu", "kind": "lookup"}
    objects = render(values(GPU_DRAFT, claimed, asked, cpu, verifiers=verifier(gpu={"count": 1}, replicas=3)))
    rollouts = {
        name: one(objects, "Deployment", name)["spec"]["strategy"]["rollingUpdate"]
        for name in ("draft-small", "draft-claimed", "verifier-main", "draft-asked", "draft-cpu", "router")
    }
    no_spare, spare = {"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": 1, "maxUnavailable": 0}
    assert list(rollouts.values()) == [no_spare, no_spare, no_spare, spare, spare, spare]


def test_every_value_of_a_pool_reaches_its_pod() -> None:
    objects = render(EVERYTHING)
    deployment = one(objects, "Deployment", "draft-full")
    spec, main = pod(deployment), container(deployment)
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["nodeSelector"] == {"gpu": "l4"}
    assert spec["affinity"] == {"nodeAffinity": {}}
    assert spec["tolerations"] == [DEFAULT_TOLERATION, SPOT]
    assert spec["priorityClassName"] == "low"
    [spread] = spec["topologySpreadConstraints"]
    assert spread["labelSelector"] == deployment["spec"]["selector"]
    assert spec["terminationGracePeriodSeconds"] > 7
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert {"name": "OMP_NUM_THREADS", "value": "2"} in main["env"]
    assert {"name": "extra", "mountPath": "/srv/extra"} in main["volumeMounts"]
    assert {"name": "extra", "emptyDir": {}} in spec["volumes"]
    assert labels(deployment)["team"] == "ml"
    assert deployment["spec"]["template"]["metadata"]["annotations"]["note"] == "x"
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": 0}
    assert main["resources"] == {"requests": {"cpu": "500m"}, "limits": {"memory": "8Gi", "nvidia.com/mig-1g.10gb": 1}}
    assert main["startupProbe"]["failureThreshold"] * main["startupProbe"]["periodSeconds"] >= 61
    assert main["image"] == "specmesh/draft:0.1.0"
    assert container(one(objects, "Deployment", "router"))["image"] == f"r@sha256:{SHA}"
    assert [entry["secret"]["secretName"] for entry in spec["volumes"] if entry["name"] == "tls"] == ["own"]
    config = config_of(objects, "draft-full")
    assert f"kv_memory_bytes = {3 * 2**29}" in config.splitlines()
    for line in ("drain_seconds = 7", "max_batch = 8", "row_mass = 0.99", 'quantization = "nf4"', 'device = "cuda"'):
        assert line in config.splitlines()
    # Large numbers stay whole numbers, though a value of a chart is a floating-point number.
    assert "max_context_bytes = 268435456" in config.splitlines()
    assert "max_tokens_per_minute = 9000000" in config_of(objects, "router").splitlines()
    for name in ("draft-full", "verifier-a"):  # what is pinned is checked before it serves
        assert f'model_digest = "{SHA}"' in config_of(objects, name)
    for version in VERSIONS[2:]:
        check_schema(render(EVERYTHING, version=version), version)


def test_pools_ask_for_resources_whose_values_say_nothing_of_them() -> None:
    """Requests by what a pool runs on and no limits; `resources` stand instead, an empty one removes them."""
    defaults = load(CHART / "values.yaml")["defaultResources"]
    pools = [
        GPU_DRAFT,
        {**GPU_DRAFT, "name": "cpu", "gpu": {"count": 0}},
        {"name": "table", "kind": "table", "model": "file"},
        {"name": "lookup", "kind": "lookup"},
        {"name": "none", "kind": "lookup", "resources": {}},
        {"name": "own", "kind": "lookup", "resources": {"requests": {"cpu": "2"}}},
    ]
    file = {"pvc": {"claim": "weights", "path": "t.npz"}}
    objects = render(values(*pools, models={"file": file}))
    asked = {
        name: container(one(objects, "Deployment", f"{name}")).get("resources")
        for name in ("verifier-main", *(f"draft-{pool['name']}" for pool in pools))
    }
    assert asked == {
        "verifier-main": defaults["model"],
        "draft-small": defaults["gpu"] | {"limits": {"nvidia.com/gpu": 1}},
        "draft-cpu": defaults["model"],
        "draft-table": defaults["light"],
        "draft-lookup": defaults["light"],
        "draft-none": None,
        "draft-own": {"requests": {"cpu": "2"}},
    }
    for resources in defaults.values():
        assert resources.keys() == {"requests"}
        assert resources["requests"].keys() == {"cpu", "memory"}


def test_replicas_are_those_given_and_the_autoscalers_where_one_is() -> None:
    objects = render(EVERYTHING)
    assert one(objects, "Deployment", "draft-table")["spec"]["replicas"] == 0
    assert one(objects, "Deployment", "verifier-b")["spec"]["replicas"] == 2
    for name in ("draft-full", "draft-lookup", "verifier-a", "router"):
        assert "replicas" not in one(objects, "Deployment", name)["spec"]


def test_weights_come_from_a_claim_an_image_the_hub_or_a_path() -> None:
    """Read-only; a hub's token only where the hub is asked, and the hub is offline to everybody else."""
    objects = render(EVERYTHING)
    image = one(objects, "Deployment", "verifier-a")
    [volume] = [each for each in pod(image)["volumes"] if each["name"] == "model"]
    assert volume["image"]["reference"].endswith(f"@sha256:{SHA}")
    claim = one(render(values(GPU_DRAFT)), "Deployment", "draft-small")
    [volume] = [each for each in pod(claim)["volumes"] if each["name"] == "model"]
    assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    [mount] = [each for each in container(claim)["volumeMounts"] if each["name"] == "model"]
    assert mount == {"name": "model", "mountPath": "/srv/models/target", "readOnly": True, "subPath": "target"}
    hub = container(one(objects, "Deployment", "draft-claimed"))["env"]
    assert [each["valueFrom"]["secretKeyRef"] for each in hub if each["name"] == "HF_TOKEN"] == [
        {"name": "hub", "key": "token"}
    ]
    for name in ("verifier-a", "draft-table", "draft-lookup", "router"):
        env = {each["name"]: each.get("value") for each in container(one(objects, "Deployment", name))["env"]}
        assert env["HF_HUB_OFFLINE"] == "1"
        assert "HF_TOKEN" not in env
    assert 'path = "/srv/extra/phrases.npz"' in config_of(objects, "draft-table")


def test_a_claimed_device_takes_the_place_of_the_gpu_resource() -> None:
    """Dynamic resource allocation: a template of its own, and no nvidia.com/gpu."""
    claim = {"deviceClassName": "gpu.example.com", "count": 2, "selectors": ["device.attributes['x'].y == 'H100'"]}
    objects = render(values({**GPU_DRAFT, "gpu": {"claim": claim}}), version="1.34.0")
    deployment = one(objects, "Deployment", "draft-small")
    [request] = one(objects, "ResourceClaimTemplate", "draft-small")["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "gpu.example.com",
        "count": 2,
        "selectors": [{"cel": {"expression": "device.attributes['x'].y == 'H100'"}}],
    }
    [of_pod] = pod(deployment)["resourceClaims"]
    assert of_pod["resourceClaimTemplateName"] == deployment["metadata"]["name"]
    resources = container(deployment)["resources"]
    assert resources["claims"] == [{"name": of_pod["name"]}]
    assert "limits" not in resources
    assert pod(deployment)["tolerations"] == [DEFAULT_TOLERATION]
    check_schema(objects, "1.34.0")


def test_a_verifier_over_several_gpus_has_memory_to_share() -> None:
    objects = render(EVERYTHING)
    [shm] = [each for each in pod(one(objects, "Deployment", "verifier-a"))["volumes"] if each["name"] == "shm"]
    assert shm["emptyDir"]["medium"] == "Memory"
    mounts = container(one(objects, "Deployment", "verifier-a"))["volumeMounts"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in mounts
    assert "shm" not in str(pod(one(objects, "Deployment", "verifier-b")))


def test_autoscaling_asks_for_metrics_that_are_declared_and_for_no_other() -> None:
    """Names come from one table; the series is that of this release, namespace and pool."""
    objects = render(EVERYTHING)
    scaled = one(objects, "ScaledObject", "draft-full")["spec"]
    [trigger] = scaled["triggers"]
    of_release = 'app_kubernetes_io_component="router",app_kubernetes_io_instance="mesh",namespace="ai",'
    series = f'{ARM_DEMAND.prometheus}{{{of_release}{prometheus_label(POOL)}="full"}}'
    assert trigger["metadata"]["query"] == f"sum(rate({series}[120s]))"
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (0, 4)
    assert float(trigger["metadata"]["threshold"]) == 20.5
    asked = {
        name: one(objects, "HorizontalPodAutoscaler", name)["spec"]["metrics"][0]
        for name in ("verifier-a", "draft-lookup", "router")
    }
    assert asked["verifier-a"]["external"]["metric"]["name"] == VERIFIER_QUEUE.prometheus
    assert asked["draft-lookup"]["external"]["metric"]["selector"]["matchLabels"][prometheus_label(POOL)] == "lookup"
    assert asked["router"]["resource"]["name"] == "cpu"
    names = {each["external"]["metric"]["name"] for each in asked.values() if "external" in each}
    assert names <= {metric.prometheus for metric in DECLARED}
    for name, each in {**of_kind(objects, "ScaledObject"), **of_kind(objects, "HorizontalPodAutoscaler")}.items():
        assert each["spec"]["scaleTargetRef"]["name"] == name


@pytest.mark.parametrize(("interval", "window"), [("5s", "60s"), ("500ms", "60s"), ("30s", "120s"), ("2m", "480s")])
def test_a_rate_is_taken_over_several_scrapes(interval: str, window: str) -> None:
    """Over one of them there is none, and a pool without replicas would stay so."""
    keda = {"enabled": True, "kind": "keda", "min": 0, "max": 2, "target": 4}
    telemetry = {**METRICS["telemetry"], "podMonitor": {"interval": interval}}
    pool = {"name": "lookup", "kind": "lookup", "autoscaling": keda}
    [scaled] = of_kind(render(values(pool, **{**METRICS, "telemetry": telemetry})), "ScaledObject").values()
    assert scaled["spec"]["triggers"][0]["metadata"]["query"].endswith(f"[{window}]))")


def test_who_may_say_what_is_wanted_of_a_pool_is_the_router_alone() -> None:
    """A pool that is not trusted is scraped too, and could export any series."""
    selector = one(render(EVERYTHING), "HorizontalPodAutoscaler", "draft-lookup")["spec"]["metrics"][0]["external"]
    asked = selector["metric"]["selector"]["matchLabels"]
    assert asked["app_kubernetes_io_component"] == "router"
    verifiers = one(render(EVERYTHING), "HorizontalPodAutoscaler", "verifier-a")["spec"]["metrics"][0]["external"]
    assert verifiers["metric"]["selector"]["matchLabels"]["app_kubernetes_io_component"] == "verifier"


def test_series_are_asked_for_by_labels_that_the_pod_monitor_gives_them() -> None:
    """Verifiers by the pool of their pods; a draft's demand is measured by routers, which say the pool themselves."""
    keda = {"enabled": True, "kind": "keda", "min": 1, "max": 2, "target": 4}
    pools = verifier(autoscaling=keda)
    objects = render(values({"name": "lookup", "kind": "lookup", "autoscaling": keda}, **METRICS, verifiers=pools))
    [monitor] = of_kind(objects, "PodMonitor").values()
    given = {re.sub(r"\W", "_", label) for label in monitor["spec"]["podTargetLabels"]} | {"namespace"}
    queries = {
        name: each["spec"]["triggers"][0]["metadata"]["query"]
        for name, each in of_kind(objects, "ScaledObject").items()
    }
    assert queries["mesh-specmesh-verifier-main"].startswith(f"sum({VERIFIER_QUEUE.prometheus}{{")
    assert 'specmesh_dev_pool="main"' in queries["mesh-specmesh-verifier-main"]
    for query in queries.values():
        assert set(re.findall(r'(\w+)="', query)) <= given | {prometheus_label(POOL)}
    labelled = labels(one(objects, "Deployment", "verifier-main"))
    assert labelled["specmesh.dev/pool"] == "main"


def test_routers_scale_by_a_word() -> None:
    scaler = one(render(values(router={"autoscaling": {"enabled": True}})), "HorizontalPodAutoscaler", "router")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 10)
    [metric] = scaler["metrics"]
    assert metric["resource"]["target"] == {"type": "Utilization", "averageUtilization": 70}


def test_a_pod_monitor_is_made_where_the_cluster_has_the_kind() -> None:
    """Its labels are those by which autoscaling asks."""
    objects = render(values(**METRICS))
    [monitor] = of_kind(objects, "PodMonitor").values()
    assert monitor["spec"]["podTargetLabels"] == [
        "app.kubernetes.io/instance", "app.kubernetes.io/component", "specmesh.dev/pool",
    ]  # fmt: skip
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    for deployment in of_kind(objects, "Deployment").values():
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels(deployment).items()
        ports = {port["name"]: port["containerPort"] for port in container(deployment)["ports"]}
        assert ports[endpoint["port"]] == 9464
    without = render(values(**METRICS), capabilities=())
    assert not of_kind(without, "PodMonitor")
    assert not of_kind(render(values()), "PodMonitor")

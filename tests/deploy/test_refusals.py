"""Values that contradict each other are refused before anything is installed: all at once, each with its field."""

from typing import Any

import pytest
from chart_values import GPU_DRAFT, METRICS, MINIMAL, SHA, values, verifier
from helm_charts import Refused, needs_tools, render
from refusals import assert_said, faults

pytestmark = needs_tools
LOOKUP: dict[str, Any] = {"name": "lookup", "kind": "lookup"}
HF: dict[str, Any] = {"kind": "hf", "model": "target"}
SCALED = {"enabled": True, "min": 1, "max": 2, "target": 5}
KEDA = {**SCALED, "kind": "keda"}


Faults = dict[str, tuple[dict[str, Any], str]]
DRAFTS: Faults = {
    "a draft without a model": ({"kind": "hf"}, "model: kind hf needs one; name one of models"),
    "a lookup with a model": ({"model": "target"}, "model: kind lookup has none"),
    "a lookup on a GPU": ({"gpu": {"count": 1}}, "gpu: kind lookup runs on a CPU"),
    "a quantised table": (
        {"kind": "table", "model": "file", "quantization": "nf4", "image": {"tag": "x"}},
        "quantization: kind table has no weights",
    ),
    "keys and values of less than a byte": ({**HF, "kvMemory": "0.1B"}, "kvMemory: 0.1B is less than a byte"),
    "a setting by the environment": (
        {"env": [{"name": "SPECMESH_DRAFT__SERVER__ALLOW", "value": "{}"}]},
        "env: SPECMESH_DRAFT__SERVER__ALLOW would win over what the chart sets; use config, or the value it comes from",
    ),
    "keys and values of a lookup": ({"kvMemory": "1GiB"}, "kvMemory: kind lookup keeps no keys and values"),
    "a table that is a folder": ({"kind": "table", "model": "folder"}, "model: a table is one file"),
    "a model that is not there": ({**HF, "model": "other"}, "model: models has no other; it has file, folder, hub, t"),
    "the hub behind the policy": ({**HF, "model": "hub"}, "networkPolicy does not let it reach; set networkPolicy.all"),
    "a count and a claim": (
        {**HF, "gpu": {"count": 1, "claim": {"deviceClassName": "x"}}}, "gpu: count and resource ask for",
    ),
    "a resource without a count": ({**HF, "gpu": {"resource": "nvidia.com/gpu"}}, "gpu: needs count"),
    "quantised on CPUs": ({**HF, "quantization": "int8"}, "quantization: needs a gpu"),
    "32 bits beside 4": (
        {**HF, "gpu": {"count": 1}, "quantization": "nf4", "dtype": "float32"}, "dtype: float32 cannot be kept with q",
    ),
    "GPU nodes without a gpu": (
        {**HF, "nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}},
        "gpu: is missing, while nodeSelector nvidia.com/gpu.product asks for a node with GPUs; set gpu: {count: 1}",
    ),
    "a GPU's runtime without a gpu": ({**HF, "runtimeClassName": "nvidia"}, "gpu: is missing, while runtimeClassName"),
    "a GPU's toleration without a gpu": (
        {**HF, "extraTolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, "gpu: is missing, while tolerat",
    ),
    "a GPU among the resources": (
        {**HF, "resources": {"limits": {"nvidia.com/gpu": 1}}}, "resources.limits: nvidia.com/gpu stands under gpu",
    ),
    "more than the limit": (
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "2G"}}},
        "resources: requests 2Gi of memory, more than its limit of 2G",
    ),
    "eight bytes": ({"resources": {"requests": {"memory": 8}}}, "resources.requests: memory 8 is 8 bytes; write a uni"),
    "half a byte": ({"resources": {"limits": {"memory": "512m"}}}, "resources.limits: memory 512m is 0.512 bytes"),
    "affinity to GPU nodes without a gpu": (
        {**HF, "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["Tesla-T4"]}]},
        ]}}}},
        "gpu: is missing, while affinity nvidia.com/gpu.product asks for a node with GPUs",
    ),
    "Exists with a value": (
        {"tolerations": [{"operator": "Exists"}, {"key": "spot", "operator": "Exists", "value": "true"}]},
        "tolerations[1]: operator Exists takes no value; leave value out, or use operator Equal",
    ),
    "a toleration of no key": ({"extraTolerations": [{"effect": "NoSchedule"}]}, "extraTolerations[0]: has no key"),
    "seconds without an eviction": (
        {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 9}]}, "tolerations[0]: tolerationSeco",
    ),
    "a comparison with a word": (
        {"tolerations": [{"key": "a", "operator": "Gt", "value": "many"}]}, 'compares whole numbers; value is "many"',
    ),
    "a volume of the chart's": (
        {"volumes": [{"name": "cache", "emptyDir": {}}]}, "volumes cache: the chart has a volume of this name",
    ),
    "a mount of no volume": (
        {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}, "volumeMounts data: there is no volume of this",
    ),
    "a mount over the chart's": (
        {"volumeMounts": [{"name": "cache", "mountPath": "/tmp"}]}, "something is mounted at /tmp already",
    ),
    "a variable of the chart's": ({"env": [{"name": "HOME", "value": "/x"}]}, "env HOME: the chart sets it; leave it"),
    "a variable twice": (
        {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "env A: two entries have this name",
    ),
    "a label of the chart's": (
        {"podLabels": {"app.kubernetes.io/component": "x"}}, "podLabels: app.kubernetes.io/component is set by the cha",
    ),
    "an annotation of the chart's": ({"podAnnotations": {"checksum/config": "x"}}, "podAnnotations: checksum/config"),
    "a rollout of nothing": (
        {**HF, "gpu": {"count": 1}, "rollout": {"maxUnavailable": 0}}, "rollout: maxSurge and maxUnavailable are both",
    ),
    "a key that the chart sets": ({"config": {"server": {"port": 1}}}, "config: server.port is set by the chart"),
    "a slip in the configuration": (
        {"config": {"limits": {"max_rows": 8}}},
        "config: limits.max_rows is no key of a draft-lookup; limits has max_batch, max_block_length",
    ),
    "a setting of another kind": (
        {**HF, "config": {"drafter": {"min_match": 2}}},
        "config: drafter.min_match is no key of a draft-hf; drafter has chunk_tokens, context, device",
    ),
    "a section that is none": (
        {"config": {"limit": {"max_row": 8}}}, "config: limit is no key of a draft-lookup; the top has drafter, kin",
    ),
    "a null": ({"config": {"limits": {"max_row": None}}}, "config: limits.max_row is null"),
    "sharing a certificate for nothing": ({"tls": {"shared": True}}, "tls.shared: is for pools with trust: untrusted"),
}  # fmt: skip
MODELS = {
    "hub": {"hub": "a/b"},
    "folder": {"pvc": {"claim": "weights"}},
    "file": {"pvc": {"claim": "weights", "path": "table.npz"}},
}
SCALINGS: Faults = {
    "least above most": ({**SCALED, "min": 4}, "autoscaling: min is 4, above max, which is 2; raise max or lower min"),
    "an HPA from zero": ({**SCALED, "min": 0}, "autoscaling: min is 0, which only kind keda can do; set kind: keda"),
}
METRICS_FAULTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nobody exports, may scrape or can be asked": (
        {},
        [
            "telemetry.prometheusPort: is 0, but what verifiers main, drafts lookup scale by is exported there",
            "networkPolicy.scrapeFrom: is empty, so that nobody can scrape what verifiers main, drafts lookup scale by",
            "autoscaling.prometheusAddress: is empty, but KEDA asks there for what drafts lookup scale by",
        ],
    ),
    "nobody may scrape": ({**METRICS, "networkPolicy": {}}, ["networkPolicy.scrapeFrom: is empty"]),
    "nobody can be asked": ({**METRICS, "autoscaling": {}}, ["autoscaling.prometheusAddress: is empty"]),
}


def said_of(list_name: str, said: list[str], number: int) -> list[str]:
    prefix = f"{list_name} p{number}: "
    return [line.removeprefix(prefix) for line in said if line.startswith(prefix)]


@pytest.fixture(scope="module")
def of_drafts() -> list[str]:
    pools = [{"kind": "lookup", **fault, "name": f"p{number}"} for number, (fault, _) in enumerate(DRAFTS.values())]
    return faults(values(*pools, models=MODELS))


@pytest.mark.parametrize("case", DRAFTS)
def test_a_pool_that_contradicts_itself_is_refused_with_the_field(of_drafts: list[str], case: str) -> None:
    [line] = said_of("drafts", of_drafts, list(DRAFTS).index(case))
    assert DRAFTS[case][1] in line


def test_all_faults_are_said_at_once_and_nothing_else(of_drafts: list[str]) -> None:
    assert len(of_drafts) == len(DRAFTS)


@pytest.fixture(scope="module")
def of_scalings() -> list[str]:
    pools = [{**LOOKUP, "name": f"p{at}", "autoscaling": fault} for at, (fault, _) in enumerate(SCALINGS.values())]
    given = values(*pools, **METRICS, verifiers=verifier(autoscaling={**KEDA, "min": 0}))
    return faults(
        given | {"router": {"autoscaling": {**KEDA, "target": 0.7}, "resources": {"requests": {"cpu": None}}}}
    )


@pytest.mark.parametrize("case", SCALINGS)
def test_scaling_that_could_never_be_is_refused(of_scalings: list[str], case: str) -> None:
    [line] = said_of("drafts", of_scalings, list(SCALINGS).index(case))
    assert SCALINGS[case][1] in line


def test_verifiers_measure_their_queue_themselves_and_cannot_start_from_none(of_scalings: list[str]) -> None:
    [line] = [line for line in of_scalings if line.startswith("verifiers main: ")]
    assert "none would ever be started; set min to 1" in line


def test_routers_follow_processor_time_that_is_asked_for(of_scalings: list[str]) -> None:
    keda, target, request = [line for line in of_scalings if line.startswith("router: autoscaling: ")]
    assert "kind keda is for pools" in keda
    assert "target is percent of the requested processor time, a whole number, not 0.7" in target
    assert "set router.resources.requests.cpu" in request


@pytest.mark.parametrize("case", METRICS_FAULTS)
def test_scaling_by_metrics_that_nobody_gets_is_refused(case: str) -> None:
    change, messages = METRICS_FAULTS[case]
    said = faults(values({**LOOKUP, "autoscaling": KEDA}, verifiers=verifier(autoscaling=SCALED), **change))
    for line, message in zip(said, messages, strict=True):
        assert line.startswith(message)


def test_a_policy_that_is_off_stops_no_scraping() -> None:
    change = METRICS | {"networkPolicy": {"enabled": False}}
    assert render(values({**LOOKUP, "autoscaling": KEDA}, **change))


def test_what_no_pool_alone_has_wrong_is_said_too() -> None:
    said = faults(
        values(
            LOOKUP,
            LOOKUP,
            models={
                "second": {"path": "/b"},
                "both": {"hub": "a/b", "path": "c"},
                "none": {},
                "up": {"pvc": {"claim": "w", "path": "a/../b"}},
            },
            verifiers=[
                *verifier(gpu={"count": 2}, quantization="nf4"),
                *verifier(),
                {"name": "two", "model": "second"},
            ],
            router={
                "config": {"pools": [], "sessions": {"holdout": 0}},
                "policy": {"name": "ucb1", "settings": {"lengths": [0, 4]}},
            },
            telemetry={"prometheusPort": 80, "podMonitor": {"labels": {"app.kubernetes.io/name": "x"}}},
            tls={"clientCertificates": True},
            gpuTolerations=[{"key": "a", "operator": "Exists", "value": "b"}],
        )
    )
    expected = (
        "models both: has hub, path; give it exactly one of hub, pvc, image and path",
        "models none: has no source; give it exactly one",
        "models up: pvc.path is inside the claim",
        "verifiers main: two pools have this name",
        "drafts lookup: two pools have this name",
        "verifiers: one release serves one model, not target, second",
        "gpuTolerations[0]: operator Exists takes no value",
        "tls.clientCertificates: needs tls.enabled",
        "telemetry.prometheusPort: 80 is a privileged port",
        "telemetry.podMonitor.labels: app.kubernetes.io/name is set by the chart",
        "verifiers: main and two differ in dtype or quantization",
        "router: config: pools is set by the chart",
        "router: policy.settings.lengths is no key of a router; policy.settings has candidate_lengths, exploration",
        "router: config: sessions.holdout is no key of a router; sessions has hold_out, lease_ms",
        "verifiers main: quantization: a quantised model cannot be divided among several GPUs",
    )
    assert_said(said, expected)


@pytest.mark.parametrize(("release", "override"), [("7mesh", ""), ("mesh.v2", ""), ("mesh", "7"), ("mesh", "a.b")])
def test_a_name_that_no_service_can_have_is_refused(release: str, override: str) -> None:
    """A release may be called so, a pod too; the name of a service begins with a letter and has no dot."""
    [line] = faults(values(fullnameOverride=override), release=release)
    assert line.startswith("fullnameOverride: services would be called ")


def test_a_name_of_its_own_helps_a_release_that_is_called_otherwise() -> None:
    assert render(values(fullnameOverride="mesh-2"), release="7mesh")


def test_a_port_of_the_services_is_not_one_for_metrics() -> None:
    [line] = faults(values(telemetry={"prometheusPort": 50051}))
    assert line.startswith("telemetry.prometheusPort: 50051 is a port of the services themselves")


def test_what_the_cluster_is_too_old_for_is_refused() -> None:
    claimed = {**GPU_DRAFT, "name": "claimed", "gpu": {"claim": {"deviceClassName": "gpu.example.com"}}}
    compared = {**LOOKUP, "tolerations": [{"key": "sla", "operator": "Lt", "value": "9"}]}
    weights = {"target": {"image": f"registry.example.com/target@sha256:{SHA}"}}
    image, claim, operator = faults(values(claimed, compared, models=weights), version="1.30.0")
    assert image.startswith("models target: image volumes need Kubernetes 1.31 or newer, this is v1.30.0")
    assert claim.startswith("drafts claimed: gpu: claim needs Kubernetes 1.34 or newer")
    assert operator.startswith(
        "drafts lookup: tolerations[0]: operator Lt needs Kubernetes 1.35 or newer and its feature"
    )


def test_an_old_cluster_is_refused() -> None:
    with pytest.raises(Refused, match="kubeVersion"):
        render(MINIMAL, version="1.26.0")


def test_a_pinned_model_is_held_in_one_form() -> None:
    """Its digest is also of dtype and quantisation: another form would be another digest, and not be served."""
    pinned = {"target": {"path": "/t"}, "small": {"path": "/s", "digest": SHA}}
    plain = {**GPU_DRAFT, "model": "small"}
    quantised = {**plain, "name": "cheap", "quantization": "nf4"}
    [line] = faults(values(plain, quantised, models=pinned))
    assert line.startswith("models small: digest pins dtype and quantization too, but cheap and small hold this model")
    assert render(values(plain, {**plain, "name": "twin"}, models=pinned))


def test_a_model_is_divided_among_the_gpus_of_its_pod_and_no_others() -> None:
    divided = verifier(gpu={"count": 1}, config={"tensor_parallel": 2})
    assert faults(values(verifiers=divided)) == [
        "verifiers main: config: tensor_parallel is set by the chart; use the value that it comes from"
    ]


def test_verifiers_of_a_release_hold_the_model_in_one_form() -> None:
    """Routers refuse a verifier with another digest than that of the first."""
    cheap = {"name": "cheap", "model": "target", "gpu": {"count": 1}, "quantization": "int8"}
    [line] = faults(values(verifiers=[*verifier(gpu={"count": 1}), cheap]))
    assert line.startswith("verifiers: cheap and main differ in dtype or quantization")


def test_the_minimal_values_are_enough() -> None:
    """The refusals above are of their one fault, and nothing else is missing."""
    assert render(MINIMAL)
    assert render(values(models={"target": {"path": "/x", "digest": SHA}}))

"""What values.schema.json refuses: slips, unknown words and numbers out of range, each with its place."""

import re
from typing import Any

import pytest
from chart_values import GPU_DRAFT, MINIMAL, values, verifier
from helm_charts import CHART, Refused, load, needs_tools, render

pytestmark = needs_tools
LOOKUP: dict[str, Any] = {"name": "lookup", "kind": "lookup"}
CALLER = {"name": "team"}
NODE = "requiredDuringSchedulingIgnoredDuringExecution"


def node_affinity(**requirement: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {NODE: {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}}}


POOLS: dict[str, tuple[dict[str, Any], str]] = {
    "a slip in a pool": ({"nodeselector": {}}, "'nodeselector' not allowed"),
    "a kind that is not there": ({"kind": "eagle"}, "kind': value must be one of"),
    "the faulty draft of the tests": ({"kind": "faulty"}, "kind': value must be one of"),
    "a name that is none": ({"name": "My_Pool"}, "name'"),
    "a name too long": ({"name": "p" * 25}, "name'"),
    "trust of another kind": ({"trust": "some"}, "trust': value must be one of 'full', 'untrusted'"),
    "less than no replicas": ({"replicas": -1}, "replicas': minimum"),
    "half a replica": ({"replicas": 1.5}, "replicas': got number, want integer"),
    "a GPU resource without a domain": ({"gpu": {"count": 1, "resource": "gpu"}}, "gpu/resource'"),
    "a quantisation that is not there": ({"quantization": "int4"}, "quantization'"),
    "a path of the host": ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "'hostPath' not allowed"),
    "a volume of nothing": ({"volumes": [{"name": "x"}]}, "volumes/0'"),
    "scaling without bounds": ({"autoscaling": {"enabled": True}}, "missing properties 'min', 'max', 'target'"),
    "a toleration operator of node affinity": ({"tolerations": [{"key": "a", "operator": "In"}]},
        "tolerations/0/operator': value must be one of 'Exists', 'Equal', 'Lt', 'Gt'"),
    "an effect that is not there": ({"extraTolerations": [{"operator": "Exists", "effect": "NoRun"}]},
        "extraTolerations/0/effect': value must be one of 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"),
    "a slip in a toleration": ({"tolerations": [{"key": "a", "opertor": "Exists"}]}, "'opertor' not allowed"),
    "a taint written as kubectl writes it": ({"tolerations": ["spot=true:NoSchedule"]}, "tolerations/0': got string"),
    "a node operator that is not there": (node_affinity(key="a", operator="Equal"),
        "operator': value must be one of 'In', 'NotIn', 'Exists', 'DoesNotExist', 'Gt', 'Lt'"),
    "In without values": (node_affinity(key="a", operator="In"), "missing property 'values'"),
    "Exists with values": (node_affinity(key="a", operator="Exists", values=["b"]), "values': maxItems"),
    "Gt of a word": (node_affinity(key="a", operator="Gt", values=["many"]), "values/0'"),
    "terms where expressions belong": (
        {"affinity": {"nodeAffinity": {NODE: {"nodeSelectorTerms": [{"key": "a", "operator": "Exists"}]}}}},
        "nodeSelectorTerms/0': additional properties",
    ),
    "affinity without its list": ({"affinity": {"nodeAffinity": {NODE: {"matchExpressions": []}}}}, "nodeAffinity/"),
    "a pod affinity without a topology": (
        {"affinity": {"podAntiAffinity": {NODE: [{"labelSelector": {"matchLabels": {"a": "b"}}}]}}}, "'topologyKey'",
    ),
    "a spread that is not there": (
        {"topologySpread": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "Never"}]}, "whenUnsatisfiable'",
    ),
    "a label that is a boolean": ({"nodeSelector": {"gpu": True}}, "nodeSelector/gpu': got boolean, want string"),
    "a label with a space": ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA L4"}}, "nvidia.com~1gpu.product'"),
    "megabytes in an unknown unit": ({"resources": {"limits": {"memory": "8GB"}}}, "resources/limits/memory'"),
    "resources without requests": ({"resources": {"cpu": 1}}, "additional properties 'cpu'"),
    "a number in the environment": ({"env": [{"name": "OMP_NUM_THREADS", "value": 2}]}, "env/0/value': got number"),
    "egress to labels": ({"egress": [{"to": [{"matchLabels": {"a": "b"}}]}]}, "'matchLabels' not allowed"),
}  # fmt: skip

ELSEWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "a key that is not there": ({"replicaCount": 3}, "'replicaCount' not allowed"),
    "no router": ({"router": {"replicas": 0}}, "/router/replicas'"),
    "a policy that is not there": ({"router": {"policy": {"name": "goodputt"}}}, "/router/policy/name': value must be"),
    "memory without a unit": ({"verifiers": verifier(kvMemory="40")}, "/verifiers/0/kvMemory'"),
    "an unpinned image of weights": ({"models": {"a": {"image": "registry/weights:latest"}}}, "/models/a/image'"),
    "a digest that is none": ({"models": {"b": {"path": "c", "digest": "latest"}}}, "/models/b/digest'"),
    "a path that leaves the claim": ({"models": {"c": {"pvc": {"claim": "w", "path": "/a"}}}}, "/models/c/pvc/path'"),
    "a tag in the repository": ({"images": {"cpu": {"repository": "r.example:5000/cpu:1"}}}, "/images/cpu/repository'"),
    "a digest for a tag": ({"images": {"draft": {"tag": "sha256:0123"}}}, "/images/draft/tag'"),
    "running as root": ({"podSecurity": {"runAsUser": 0}}, "/podSecurity/runAsUser'"),
    "a role that is not there, and a token": (
        {"auth": {"callers": [{**CALLER, "roles": ["admin"], "token": "secret"}]}}, "/auth/callers/0/roles/0'",
    ),
    "a port that is none": ({"telemetry": {"prometheusPort": 94640}}, "/telemetry/prometheusPort'"),
    "a collector without a port": ({"telemetry": {"otlpEndpoint": "http://collector"}}, "/telemetry/otlpEndpoint'"),
    "a selector that selects everything": (
        {"networkPolicy": {"scrapeFrom": [{"namespaceSelector": {"team": "x"}}]}}, "'team' not allowed",
    ),
    "a default toleration of nothing": ({"gpuTolerations": [{"effect": "Never"}]}, "/gpuTolerations/0/effect'"),
}  # fmt: skip


def merged(into: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    for key, value in change.items():
        into[key] = merged(into.get(key, {}), value) if isinstance(value, dict) else value
    return into


def complaints(given: dict[str, Any]) -> str:
    with pytest.raises(Refused, match="don't meet the specifications of the schema") as caught:
        render(given)
    return str(caught.value)


@pytest.fixture(scope="module")
def of_pools() -> dict[str, str]:
    """What is said of each pool of the table, by the place it has in `drafts`."""
    pools = [{**LOOKUP, "name": f"p{number}", **fault} for number, (fault, _) in enumerate(POOLS.values())]
    said: dict[str, str] = {}
    # A fault within a definition stands under a line about where it is.
    for part in re.split(r"\n(?=- at )", complaints(values(*pools))):
        if found := re.match(r"- at '/drafts/(\d+)", part):
            name = list(POOLS)[int(found[1])]
            said[name] = said.get(name, "") + part
    return said


@pytest.mark.parametrize("case", POOLS)
def test_a_slip_in_a_pool_is_refused_with_its_place(of_pools: dict[str, str], case: str) -> None:
    assert POOLS[case][1] in of_pools[case]


@pytest.fixture(scope="module")
def of_the_rest() -> str:
    given = values()
    for change, _ in ELSEWHERE.values():
        merged(given, change)
    return complaints(given)


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_slip_elsewhere_is_refused_with_its_place(of_the_rest: str, case: str) -> None:
    assert ELSEWHERE[case][1] in of_the_rest


def test_a_token_may_not_stand_among_the_values(of_the_rest: str) -> None:
    assert "at '/auth/callers/0': additional properties 'token' not allowed" in of_the_rest


@pytest.mark.parametrize("given", [{}, values(verifiers=[])], ids=["nothing at all", "no verifier"])
def test_a_mesh_has_a_verifier(given: dict[str, Any]) -> None:
    assert "at '/verifiers': minItems" in complaints(given)


def missing(said: str, place: str) -> set[str]:
    """What is said to be missing there."""
    found = re.search(rf"at '{place}': missing propert(?:y|ies) (.*)", said)
    return set(re.findall(r"'(\w+)'", found[1])) if found else set()


def test_a_default_that_is_taken_away_is_missed_by_its_name() -> None:
    """Helm removes a key whose value is null: a template would find nothing there, and say so in the words of Go."""
    defaults = load(CHART / "values.yaml")
    assert missing(complaints(dict.fromkeys(defaults)), "") == defaults.keys()
    tables = {key: dict.fromkeys(value) for key, value in defaults.items() if isinstance(value, dict) and value}
    said = complaints(MINIMAL | tables)
    assert {key: missing(said, f"/{key}") for key in tables} == {key: set(table) for key, table in tables.items()}


def test_every_operator_of_kubernetes_is_taken() -> None:
    """The refusals above are of their one fault: what Kubernetes knows passes."""
    requirements = [
        {"key": "a", "operator": "In", "values": ["b"]},
        {"key": "a", "operator": "DoesNotExist"},
        {"key": "memory", "operator": "Gt", "values": ["40000"]},
    ]
    preferred = [{"weight": 5, "preference": {"matchExpressions": requirements}}]
    term = {"labelSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}, "topologyKey": "zone"}
    tolerations = [
        {"operator": "Exists"},
        {"key": "a", "value": "b"},
        {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 60},
        {"key": "a", "operator": "Exists", "effect": "PreferNoSchedule"},
        {"key": "sla", "operator": "Gt", "value": "900", "effect": "NoSchedule"},
    ]
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
        "podAntiAffinity": {NODE: [term]},
    }
    pool = {**GPU_DRAFT, "affinity": affinity, "tolerations": tolerations}
    assert render(values(pool))
    assert render(MINIMAL)

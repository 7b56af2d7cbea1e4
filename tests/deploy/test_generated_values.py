"""Values that nobody wrote by hand: whatever the schema takes is rendered to what Kubernetes and the services take."""

import tomllib
from typing import Any

from chart_values import SHA
from helm_charts import CUSTOM_KINDS, NEWEST, VERSIONS, check_schema, container, needs_tools, of_kind, pod, render
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specmesh.draft.config import DraftConfig
from specmesh.router.config import RouterConfig
from specmesh.verifier.config import VerifierConfig

pytestmark = needs_tools
CLASSES = {"router": RouterConfig, "verifier": VerifierConfig, "draft": DraftConfig}

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
models = {
    "claim": {"pvc": {"claim": "weights", "path": "a b/c"}},
    "image": {"image": f"registry:5000/x/y@sha256:{SHA}", "digest": SHA},
    "place": {"path": 'table:/srv/x "quoted" \\ <&>.npz'},
    "hub": {"hub": "org/name-1.5_b"},
}
MEMORIES = ["1GiB", "0.5GB", "64kB", "7MiB", "2TB"]
tolerations = st.lists(st.sampled_from([{"operator": "Exists"}, {"key": "a", "operator": "Exists"}]), max_size=2)
gpus = st.one_of(
    st.fixed_dictionaries(
        {"count": st.integers(0, 4)}, optional={"resource": st.sampled_from(["nvidia.com/gpu", "a.b/c"])}
    ),
    st.just({"claim": {"deviceClassName": "gpu.example.com", "count": 2}}),
)


def scaling(*, from_zero: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Only KEDA starts from no replica, and only drafts."""

    def bounds(kind: str, low: int, more: int, target: int) -> dict[str, Any]:
        least = low if from_zero and kind == "keda" else low + 1
        return {"enabled": True, "kind": kind, "min": least, "max": max(least, 1) + more, "target": target}

    kinds = st.sampled_from(["hpa", "keda"])
    enabled = st.builds(bounds, kinds, st.integers(0, 3), st.integers(0, 5), st.integers(1, 500))
    return st.one_of(st.just({"enabled": False}), enabled)


shared: dict[str, st.SearchStrategy[Any]] = {
    "replicas": st.integers(0, 5),
    "tolerations": tolerations,
    "extraTolerations": tolerations,
    "nodeSelector": st.dictionaries(st.sampled_from(["a", "b.c/d"]), st.sampled_from(["x", "1", "true"]), max_size=2),
    "resources": st.just({"requests": {"cpu": 1, "memory": "1Gi"}}),
    "startupSeconds": st.integers(5, 7200),
    "drainSeconds": st.integers(1, 600),
    "env": st.just([{"name": "A", "value": "b"}]),
    "podLabels": st.just({"team": "x"}),
}
verifiers = st.fixed_dictionaries(
    {"name": names},
    optional=shared
    | {
        "gpu": gpus,
        "kvMemory": st.sampled_from(MEMORIES),
        "autoscaling": scaling(from_zero=False),
    },
)
of_drafts = shared | {"autoscaling": scaling(from_zero=True)}
trusts = st.sampled_from([
    {"trust": "full"},
    {"trust": "untrusted", "tls": {"secret": "own"}},
    {"trust": "untrusted", "tls": {"shared": True}},
])  # fmt: skip
drafts = st.one_of(
    st.builds(
        lambda pool, trust: pool | trust,
        st.fixed_dictionaries(
            {"name": names, "kind": st.just("hf"), "model": st.sampled_from(sorted(models))},
            optional=of_drafts
            | {"gpu": gpus, "dtype": st.sampled_from(["auto", "float32"]), "kvMemory": st.sampled_from(MEMORIES)},
        ),
        trusts,
    ),
    st.fixed_dictionaries({"name": names, "kind": st.just("table"), "model": st.just("place")}, optional=of_drafts),
    st.fixed_dictionaries({"name": names, "kind": st.just("lookup")}, optional=of_drafts),
)


def by_name(pools: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(pool["name"] for pool in pools)


@st.composite
def charts(draw: st.DrawFn) -> dict[str, Any]:
    pools = draw(st.lists(drafts, max_size=4, unique_by=lambda pool: pool["name"]))
    for pool in pools:
        if pool.get("model") == "image":  # pinned: all hold it in one form
            pool.pop("dtype", None)
        if "secret" in pool.get("tls", {}):
            pool["tls"] = {"secret": f"{pool['name']}-tls"}
    target = draw(st.sampled_from(sorted(models)))
    served = draw(st.lists(verifiers, min_size=1, max_size=2, unique_by=lambda pool: pool["name"]))
    tls = draw(st.booleans())
    callers = draw(st.lists(names, max_size=2, unique=True))
    grants = st.lists(st.sampled_from(by_name(pools)), unique=True) if pools else st.just([])
    return {
        "nameOverride": draw(st.sampled_from(["", "7"])),
        "fullnameOverride": draw(st.sampled_from(["", "m", "a-very-long-name-that-has-to-be-cut-somewhere"])),
        "models": models,
        "verifiers": [{**each, "model": target} for each in served],
        "drafts": pools,
        "router": {"replicas": draw(st.integers(1, 4)), "drainSeconds": draw(st.integers(1, 600))},
        "tls": {"enabled": tls, "routerSecret": "r", "verifierSecret": "v", "draftSecret": "d"},
        "auth": {
            "existingSecret": "t" if callers else "",
            "callers": [{"name": name, "pools": draw(grants)} for name in callers],
        },
        "networkPolicy": {"enabled": draw(st.booleans()), "allowHub": True, "scrapeFrom": [{"podSelector": {}}]},
        "telemetry": {"prometheusPort": 9464},
        "autoscaling": {"prometheusAddress": "http://prometheus:9090"},
        "test": {"prompt": draw(texts.filter(bool)), "tokenKey": callers[0] if callers else ""},
    }


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(charts(), st.sampled_from([VERSIONS[2], NEWEST]))
def test_what_the_schema_takes_is_what_kubernetes_and_the_services_take(
    given_values: dict[str, Any], version: str
) -> None:
    """Strictly valid, no two objects of one name, and every file is read by its service."""
    objects = render(given_values, version=version)
    check_schema(objects, version)
    identities = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(identities)) == len(identities)
    assert all(len(name) <= 63 for _, name in identities)
    assert {each["kind"] for each in objects if each["kind"] in CUSTOM_KINDS} <= CUSTOM_KINDS.keys()
    deployments = of_kind(objects, "Deployment")
    assert len(deployments) == 1 + len(given_values["verifiers"]) + len(given_values["drafts"])
    for name, deployment in deployments.items():
        files = tomllib.loads(of_kind(objects, "ConfigMap")[name]["data"]["config.toml"])
        # A table has no device, which the verifier says: the values of a GPU with one are a user's contradiction.
        if str(files.get("model", "")).startswith("table:"):
            files.pop("device", None)
            files.pop("tensor_parallel", None)
        config = CLASSES[container(deployment)["name"]].model_validate(files)
        assert config.telemetry.prometheus_port == 9464
        assert config.server.drain_seconds < pod(deployment)["terminationGracePeriodSeconds"]
    check_pools(given_values, objects)


def check_pools(given_values: dict[str, Any], objects: list[dict[str, Any]]) -> None:
    """Each pool asks for its own GPUs and tolerates what it says; what the tests' prompt holds arrives unchanged."""
    deployments = of_kind(objects, "Deployment").values()
    for kind, pools in (("verifier", given_values["verifiers"]), ("draft", given_values["drafts"])):
        for pool in pools:
            [deployment] = [
                each
                for each in deployments
                if each["spec"]["selector"]["matchLabels"].get("specmesh.dev/pool") == pool["name"]
                and container(each)["name"] == kind
            ]
            gpu = pool.get("gpu", {})
            limits = container(deployment).get("resources", {}).get("limits", {})
            wanted = {gpu.get("resource", "nvidia.com/gpu"): gpu["count"]} if gpu.get("count") else {}
            assert limits == wanted
            on_gpu = bool(wanted or "claim" in gpu)
            default = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] if on_gpu else []
            expected = pool.get("tolerations", default) + pool.get("extraTolerations", [])
            assert pod(deployment).get("tolerations", []) == expected
    [test] = of_kind(objects, "Pod").values()
    assert test["spec"]["containers"][0]["args"][-1] == given_values["test"]["prompt"]

"""What NOTES say after an installation: what runs, and what a platform team should know before users find it out."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from chart_values import GPU_DRAFT, METRICS, TLS, values, verifier
from helm_charts import CAPABILITIES, CHART, helm, needs_tools

from specmesh.draft.hf_settings import HfSettings
from specmesh.verifier.config import VerifierConfig

pytestmark = needs_tools
LOOKUP: dict[str, Any] = {"name": "lookup", "kind": "lookup"}
CALLER = {"name": "team"}
SHOWN = '{notes: {{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}}'
"""An object that holds the notes."""
Notes = Callable[..., str]
CLOSED: dict[str, Any] = {
    "tls": TLS,
    "auth": {"existingSecret": "t", "callers": [CALLER]},
    "test": {"tokenKey": "team"},
    "verifiers": verifier(replicas=2, gpu={"count": 1}, kvMemory="40GiB"),
}


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    """Of values, in a cluster that has these kinds: `helm template` can be told so, `helm install` asks a cluster."""
    chart = tmp_path_factory.mktemp("notes") / "specmesh"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "notes.yaml").write_text(SHOWN)

    def of(given: dict[str, Any], *, capabilities: tuple[str, ...] = CAPABILITIES) -> str:
        kinds = [word for capability in capabilities for word in ("-a", capability)]
        command = ["template", "mesh", str(chart), "-n", "ai", "--show-only", "templates/notes.yaml", *kinds]
        return str(yaml.safe_load(helm(*command, values=given))["notes"])

    return of


def test_notes_say_what_was_installed_and_what_is_open(notes: Notes) -> None:
    said = notes(values({**GPU_DRAFT, "trust": "untrusted", "replicas": 3}))
    for line in (
        "main: 1 of target, on CPUs\n",
        "small: 3 of kind hf, model target, on 1 nvidia.com/gpu each, not trusted",
        "One verifier: in a rollout the new one is ready before the old one ends, which takes a place for both.",
        "TLS is off",
        "No callers are configured",
        "drafts small: is not trusted, and sees the contexts of every caller",
    ):
        assert line in said


def test_what_a_rollout_takes_is_said_as_it_will_be(notes: Notes) -> None:
    on_gpu = verifier(gpu={"count": 1})
    assert "One verifier: its rollout needs no spare GPU" in notes(values(verifiers=on_gpu))
    assert "new ones get UNAVAILABLE" in notes(values(verifiers=on_gpu))
    surging = verifier(gpu={"count": 1}, replicas=2, rollout={"maxSurge": 1, "maxUnavailable": 0})
    said = notes(values(verifiers=surging))
    assert "no spare GPU" not in said
    assert "In pool main the new verifier is ready before the old one ends" in said


def test_notes_of_a_mesh_that_is_closed_raise_no_alarm(notes: Notes) -> None:
    said = notes(values(LOOKUP, **CLOSED))
    assert said.rstrip().endswith("what is left then goes on at another one.")
    assert "Rollouts need no spare GPU" in said


def test_a_model_on_cpus_that_nobody_asked_for_is_said(notes: Notes) -> None:
    """It would be slow and nothing else: a pool that says `gpu: {count: 0}` has been asked for."""
    forgotten = {"name": "forgotten", "kind": "hf", "model": "target"}
    said = notes(values(forgotten, {**forgotten, "name": "meant", "gpu": {"count": 0}}, LOOKUP))
    assert "drafts forgotten: has no gpu, so that its model runs on CPUs." in said
    assert "verifiers main: has no gpu, so that its model runs on CPUs." in said
    for other in ("meant", "lookup"):
        assert f"drafts {other}: has no gpu" not in said


def test_a_verifier_on_a_gpu_whose_memory_nobody_gave_is_said(notes: Notes) -> None:
    """It would take one GiB for keys and values, and let most of a large GPU lie idle."""
    said = notes(values(GPU_DRAFT, verifiers=verifier(gpu={"count": 1})))
    assert "verifiers main: has no kvMemory, so that it keeps 1GiB of keys and values" in said
    assert "drafts small: has no kvMemory, so that it keeps 256MiB of keys and values" in said
    assert "kvMemory" not in notes(
        values({**GPU_DRAFT, "kvMemory": "4GiB"}, verifiers=verifier(gpu={"count": 1}, kvMemory="40GiB"))
    )
    assert VerifierConfig.model_fields["kv_memory"].default == 2**30
    assert HfSettings.model_fields["kv_memory_bytes"].default == 2**28


def test_a_model_divided_among_slices_is_said(notes: Notes) -> None:
    slices = {"count": 2, "resource": "nvidia.com/mig-3g.40gb"}
    said = "divides its model among 2 nvidia.com/mig-3g.40gb, which was not tried"
    assert said in notes(values(verifiers=verifier(gpu=slices)))
    assert said not in notes(values(verifiers=verifier(gpu={**slices, "count": 1})))


def test_a_pool_that_no_caller_may_reach_is_said(notes: Notes) -> None:
    idle = "drafts small: no caller may reach it"
    callers = [{**CALLER, "pools": ["lookup"]}]
    auth = {"existingSecret": "t", "callers": callers}
    assert idle in notes(values(GPU_DRAFT, LOOKUP, **{**CLOSED, "auth": auth}))
    assert "drafts lookup: no caller" not in notes(values(GPU_DRAFT, LOOKUP, **{**CLOSED, "auth": auth}))
    assert idle not in notes(values(GPU_DRAFT, LOOKUP, **CLOSED))


def test_gpus_and_replicas_that_nothing_uses_are_said(notes: Notes) -> None:
    scaled = {**LOOKUP, "replicas": 3, "autoscaling": {"enabled": True, "min": 1, "max": 4, "target": 5}}
    said = notes(values({**GPU_DRAFT, "gpu": {"count": 2}}, scaled, **METRICS))
    assert "drafts small: asks for 2 nvidia.com/gpu a pod, but a draft computes on one device." in said
    assert "lookup: 1 to 4 (hpa) of kind lookup" in said
    assert "drafts lookup: replicas is not used" in said


@pytest.mark.parametrize(
    ("given", "capabilities", "absent", "unreachable"),
    [
        (METRICS, CAPABILITIES, False, False),
        (METRICS, (), True, False),
        ({**METRICS, "networkPolicy": {}}, CAPABILITIES, False, True),
        ({"telemetry": {"prometheusPort": 9464, "podMonitor": {"enabled": False}}}, (), False, True),
        ({**METRICS, "networkPolicy": {"enabled": False}}, (), True, False),
        ({}, (), False, False),
    ],
    ids=["scraped", "no operator", "nobody may", "neither asked for", "policies off", "no metrics"],
)
def test_metrics_that_nobody_gets_are_said(
    notes: Notes, given: dict[str, Any], capabilities: tuple[str, ...], absent: bool, unreachable: bool
) -> None:
    """A PodMonitor that was not made, and a port that the network policy closes."""
    said = notes(values(**given), capabilities=capabilities)
    assert ("No PodMonitor was made" in said) is absent
    assert ("Metrics are exported on port 9464, but the network policy lets nobody reach it" in said) is unreachable


def test_scaling_that_waits_for_an_adapter_is_said(notes: Notes) -> None:
    """By the external metrics API, which no cluster has by itself; KEDA asks Prometheus, routers need neither."""
    by_hpa = {"enabled": True, "min": 1, "max": 4, "target": 5}
    absent = "drafts lookup: scales by the external metrics API, which this cluster does not have."
    hpa = values({**LOOKUP, "autoscaling": by_hpa}, **METRICS)
    assert absent in notes(hpa)
    assert absent not in notes(hpa, capabilities=(*CAPABILITIES, "external.metrics.k8s.io/v1beta1"))
    assert absent not in notes(values({**LOOKUP, "autoscaling": {**by_hpa, "kind": "keda"}}, **METRICS))
    assert "external metrics API" not in notes(values(router={"autoscaling": {"enabled": True}}))


def test_who_is_kept_from_a_pool_that_is_not_trusted_is_said(notes: Notes) -> None:
    callers = [{**CALLER, "pools": ["lookup"]}, {"name": "batch"}]
    pool = {**GPU_DRAFT, "trust": "untrusted", "tls": {"shared": True}}
    said = notes(values(pool, LOOKUP, **{**CLOSED, "auth": {"existingSecret": "t", "callers": callers}}))
    assert "drafts small: is not trusted, and sees the contexts of callers without pools: batch.\n" in said
    assert "drafts small: is not trusted and shares a certificate (tls.shared)" in said


def test_parts_that_could_pass_for_each_other_are_said(notes: Notes) -> None:
    one_for_all = {"enabled": True, "routerSecret": "all", "verifierSecret": "all", "draftSecret": "all"}
    said = notes(values(tls=one_for_all))
    assert "tls.verifierSecret is the routers' certificate too" in said
    assert "tls.draftSecret is the routers' certificate too" in said
    assert "tls.draftSecret is the verifiers' certificate too: a draft could pass for a verifier" in said
    own = values({**GPU_DRAFT, "tls": {"secret": "mesh"}}, tls=TLS)
    assert "drafts small: tls.secret is the routers' certificate too" in notes(own)


def test_a_mesh_that_generates_nothing_is_said(notes: Notes) -> None:
    none = "No verifier has a replica: nothing is generated"
    assert none in notes(values(verifiers=verifier(replicas=0)))
    assert none not in notes(values(verifiers=[*verifier(replicas=0), {"name": "b", "model": "target"}]))
    scaled = {"enabled": True, "min": 1, "max": 2, "target": 5}
    assert none not in notes(values(verifiers=verifier(replicas=0, autoscaling=scaled), **METRICS))


def test_certificates_that_are_named_and_not_used_are_said(notes: Notes) -> None:
    said = notes(values(**{**CLOSED, "tls": {**TLS, "enabled": False}}))
    assert (
        "TLS is off: whoever can read the cluster's network reads prompts and texts, and the tokens of callers." in said
    )
    assert "tls.routerSecret, tls.meshSecret, tls.verifierSecret, tls.draftSecret are not used" in said


def test_where_drafts_may_send_what_they_see_is_said(notes: Notes) -> None:
    """DNS and a collector that is named are all that the threat model allows them; more is a user's word."""
    hub = {"models": {"target": {"path": "/t"}, "hub": {"hub": "a/b"}}, "networkPolicy": {"allowHub": True}}
    said = notes(values({**GPU_DRAFT, "model": "hub"}, LOOKUP, **hub))
    assert "drafts small: sees contexts, and may reach port 443 anywhere, because its model comes from the hub." in said
    assert "drafts lookup: sees contexts" not in said
    further = {**LOOKUP, "egress": [{"ports": [{"port": 8443}]}]}
    assert "drafts lookup: sees contexts, and may reach what its egress names." in notes(values(further))
    collector = {"telemetry": {"otlpEndpoint": "http://collector:4317"}}
    anywhere = "networkPolicy.otlpTo is empty: drafts and verifiers may reach port 4317 anywhere."
    assert anywhere in notes(values(**collector))
    assert anywhere not in notes(values(**collector, networkPolicy={"otlpTo": [{"podSelector": {}}]}))
    assert anywhere not in notes(values(**collector, networkPolicy={"enabled": False}))


def test_open_network_policies_are_said(notes: Notes) -> None:
    assert "any pod of the cluster can reach drafts and verifiers, and they answer it" in notes(
        values(networkPolicy={"enabled": False})
    )

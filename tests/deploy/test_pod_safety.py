"""What holds for every pod of a release: security, probes, drain, who may reach it, where secrets are."""

import tomllib
from typing import Any

import pytest
from chart_values import EVERYTHING, GPU_DRAFT, TLS, values, verifier
from helm_charts import config_of, container, needs_tools, of_kind, one, pod, render

pytestmark = needs_tools
ALLOWED_VOLUMES = {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "image"}
"""Of those that the restricted pod security standard allows; `image` since 1.33."""


@pytest.fixture(scope="module")
def everything() -> list[dict[str, Any]]:
    return render(EVERYTHING)


def all_pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Specifications of pods, that of `helm test` included."""
    pods = {name: pod(each) for name, each in of_kind(objects, "Deployment").items()}
    return pods | {name: each["spec"] for name, each in of_kind(objects, "Pod").items()}


def test_pods_meet_the_restricted_standard_with_a_read_only_root(everything: list[dict[str, Any]]) -> None:
    pods = all_pods(everything)
    assert len(pods) == 8
    for name, spec in pods.items():
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["automountServiceAccountToken"] is False
        for each in spec["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert all("hostPort" not in port for port in each.get("ports", ()))
        assert {key for volume in spec["volumes"] for key in volume if key != "name"} <= ALLOWED_VOLUMES


def test_what_libraries_write_goes_to_volumes(everything: list[dict[str, Any]]) -> None:
    for deployment in of_kind(everything, "Deployment").values():
        main = container(deployment)
        writable = {each["mountPath"] for each in main["volumeMounts"] if not each.get("readOnly")}
        assert {"/tmp", "/var/cache/specmesh"} <= writable
        folders = [each["value"] for each in main["env"] if each["name"].endswith(("HOME", "_DIR"))]
        assert len(folders) == 5
        assert all(folder.startswith("/var/cache/specmesh") for folder in folders)


def test_nobody_gets_rights_on_the_cluster(everything: list[dict[str, Any]]) -> None:
    assert not {each["kind"] for each in everything} & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
    for account in of_kind(everything, "ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False
    named = {pod(each)["serviceAccountName"] for each in of_kind(everything, "Deployment").values()}
    assert named == of_kind(everything, "ServiceAccount").keys()


def test_probes_wait_for_a_slow_load_and_end_only_what_hangs(everything: list[dict[str, Any]]) -> None:
    """All on the port that needs no certificate. A router is live before any verifier is; it is not ready before."""
    expected = {
        "router": ("live", "specmesh.v1.RouterService", 60),
        "verifier": ("specmesh.v1.VerifierService", "specmesh.v1.VerifierService", 1800),
        "draft": ("specmesh.v1.DraftService", "specmesh.v1.DraftService", 61),
    }
    for deployment in of_kind(everything, "Deployment").values():
        main = container(deployment)
        startup, ready, seconds = expected[main["name"]]
        ports = {port["name"]: port["containerPort"] for port in main["ports"]}
        probes = {kind: main[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
        services = {kind: probe["grpc"]["service"] for kind, probe in probes.items()}
        assert services == {"startup": startup, "liveness": "live", "readiness": ready}
        assert {probe["grpc"]["port"] for probe in probes.values()} == {ports["health"]}
        assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= seconds
        # A forward pass of seconds holds up no health check, and one that does is not the end.
        assert probes["liveness"]["periodSeconds"] * probes["liveness"]["failureThreshold"] >= 60
        progress = deployment["spec"]["progressDeadlineSeconds"]
        assert progress > probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"]


def test_the_grace_period_outlasts_the_drain(everything: list[dict[str, Any]]) -> None:
    """And the pause before it, in which load balancers learn that a router goes."""
    drains = {"router": 120 + 5, "verifier": 120, "draft": 10}
    for name, deployment in of_kind(everything, "Deployment").items():
        main, spec = container(deployment), pod(deployment)
        drain = 7 if name.endswith("full") else drains[main["name"]]
        assert spec["terminationGracePeriodSeconds"] > drain
        pause = main.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        assert pause == (["sleep", "5"] if main["name"] == "router" else None)


def test_a_changed_configuration_is_rolled_out() -> None:
    def checksum(**changes: Any) -> dict[str, str]:
        objects = render(values(**changes))
        return {
            name: each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for name, each in of_kind(objects, "Deployment").items()
        }

    before, after = checksum(), checksum(verifiers=verifier(kvMemory="2GiB"))
    assert {name for name in before if before[name] != after[name]} == {"mesh-specmesh-verifier-main"}


def test_budgets_let_one_pod_go_at_a_time(everything: list[dict[str, Any]]) -> None:
    """Never none: a budget equal to the replicas would stop every drain of a node."""
    for name in of_kind(everything, "Deployment"):
        assert of_kind(everything, "PodDisruptionBudget")[name]["spec"]["maxUnavailable"] == 1


def test_backends_are_headless_and_keep_the_address_of_a_pod_that_drains(everything: list[dict[str, Any]]) -> None:
    """Routers follow every address of a name, and lose what a pod that drains still has to say when it is gone."""
    for name, service in of_kind(everything, "Service").items():
        spec = service["spec"]
        if name in ("mesh-specmesh-router", "mesh-specmesh-router-pods"):
            assert "publishNotReadyAddresses" not in spec
            continue
        assert spec["clusterIP"] == "None"
        assert spec["publishNotReadyAddresses"] is True
    for name in of_kind(everything, "Deployment"):
        if not name.endswith("router"):
            assert f"dns:///{name}.ai.svc:" in config_of(everything, "router")


def test_routers_have_one_address_for_clients_and_one_each_for_proxies(everything: list[dict[str, Any]]) -> None:
    """A normal service as it was asked for, and a headless one; both say that they speak gRPC."""
    service = one(everything, "Service", "router")
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["metadata"]["annotations"] == {"internal": "true"}
    assert "clusterIP" not in service["spec"]
    assert one(everything, "Service", "router-pods")["spec"]["clusterIP"] == "None"
    for each in of_kind(everything, "Service").values():
        [port] = each["spec"]["ports"]
        assert (port["targetPort"], port["appProtocol"]) == ("grpc", "grpc")


def test_every_service_sends_its_traces_and_metrics_to_the_collector(everything: list[dict[str, Any]]) -> None:
    for name in of_kind(everything, "ConfigMap"):
        telemetry = tomllib.loads(config_of(everything, name.removeprefix("mesh-specmesh-")))["telemetry"]
        assert telemetry == {"otlp_endpoint": "http://collector:4317", "prometheus_port": 9464, "sample_ratio": 0.01}
    assert "telemetry" not in config_of(render(values()), "router")


def test_only_routers_reach_drafts_and_verifiers(everything: list[dict[str, Any]]) -> None:
    router = one(everything, "Deployment", "router")["spec"]["selector"]
    for name, policy in of_kind(everything, "NetworkPolicy").items():
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        rules = {rule["ports"][0]["port"]: rule for rule in policy["spec"]["ingress"]}
        assert rules.keys() == {"grpc", "metrics"}
        assert rules["metrics"]["from"] == [{"namespaceSelector": {}}]
        if not name.endswith("router"):
            assert rules["grpc"]["from"] == [{"podSelector": router}]
    assert {"podSelector": {}} in one(everything, "NetworkPolicy", "router")["spec"]["ingress"][0]["from"]


def test_drafts_may_speak_to_dns_and_the_collector_only(everything: list[dict[str, Any]]) -> None:
    """A draft sees prompts: it must not be able to tell anybody."""
    for name in ("draft-table", "draft-lookup", "verifier-a", "verifier-b"):
        dns, otlp = one(everything, "NetworkPolicy", name)["spec"]["egress"]
        assert [port["port"] for port in dns["ports"]] == [53, 53]
        assert dns["to"] == [
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}},
        ]
        assert otlp == {"ports": [{"port": 4317, "protocol": "TCP"}], "to": [{"podSelector": {}}]}
    *_, hub = one(everything, "NetworkPolicy", "draft-claimed")["spec"]["egress"]
    assert hub == {"ports": [{"port": 443, "protocol": "TCP"}]}
    *_, own = one(everything, "NetworkPolicy", "draft-full")["spec"]["egress"]
    assert own == {"ports": [{"port": 8443, "protocol": "TCP"}]}
    plain = one(render(values()), "NetworkPolicy", "draft-lookup")["spec"]["egress"]
    assert len(plain) == 1


def test_routers_reach_drafts_verifiers_dns_and_the_collector(everything: list[dict[str, Any]]) -> None:
    rules = one(everything, "NetworkPolicy", "router")["spec"]["egress"]
    assert [rule["ports"][0]["port"] for rule in rules] == [53, 4317, 50051, 50052]


def test_secrets_are_mounted_and_never_written_down(everything: list[dict[str, Any]]) -> None:
    """The chart names secrets; it makes none, and no configuration holds a token."""
    assert not of_kind(everything, "Secret")
    router = one(everything, "Deployment", "router")
    mounts = {each["name"]: each["mountPath"] for each in container(router)["volumeMounts"]}
    assert mounts["tokens"] == "/etc/specmesh/tokens"
    assert mounts["mesh-tls"] == "/etc/specmesh/mesh-tls"
    for deployment in of_kind(everything, "Deployment").values():
        for volume in pod(deployment)["volumes"]:
            if "secret" in volume:  # read by the group of the pod only
                assert volume["secret"]["defaultMode"] == 0o440
    assert 'token_file = "/etc/specmesh/tokens/team"' in config_of(everything, "router")
    assert "token =" not in config_of(everything, "router")


def test_certificates_name_parts_that_cannot_pass_for_each_other(everything: list[dict[str, Any]]) -> None:
    config = config_of(everything, "router")
    assert 'verifier_server_name = "mesh-specmesh-verifier.ai.svc"' in config
    assert 'server_name = "mesh-specmesh-draft-lookup.ai.svc"' in config
    assert 'server_name = "own.example.com"' in config
    assert 'client_ca_file = "/etc/specmesh/tls/ca.crt"' in config
    for name in ("verifier-a", "draft-full"):
        text = config_of(everything, name)
        assert '/*" = ["mesh-specmesh-router.ai.svc"]' in text
        assert "client_ca_file" in text
    public = config_of(render(values(GPU_DRAFT, tls=TLS)), "router")
    assert "client_ca_file" not in public


def test_debugging_services_are_off_by_default(everything: list[dict[str, Any]]) -> None:
    for name in of_kind(everything, "ConfigMap"):
        text = config_of(everything, name.removeprefix("mesh-specmesh-"))
        assert "reflection" not in text
        assert "channelz" not in text

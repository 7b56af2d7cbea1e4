"""The values that the chart ships: every example is linted, rendered and read by the services' own configuration."""

import tomllib
from pathlib import Path

import pytest
from helm_charts import (
    CHART,
    EXAMPLES,
    VERSIONS,
    Refused,
    check_schema,
    config_of,
    container,
    helm,
    load,
    needs_tools,
    of_kind,
)
from helm_charts import render as render_chart

from specmesh.draft.config import DraftConfig
from specmesh.router.config import RouterConfig
from specmesh.runtime.config import load_config
from specmesh.verifier.config import VerifierConfig

pytestmark = needs_tools
CLASSES = {"router": RouterConfig, "verifier": VerifierConfig, "draft": DraftConfig}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_lint_free(example: Path) -> None:
    assert "0 chart(s) failed" in helm("lint", str(CHART), "--strict", "-f", str(example))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid_for_several_versions_of_kubernetes(example: Path, version: str) -> None:
    """Strictly: a field that this version does not know is a fault. Image volumes come with 1.31."""
    if version == "1.27.0" and example.stem == "mixed-pools":
        with pytest.raises(Refused, match=r"models code: image volumes need Kubernetes 1\.31"):
            render_chart(example, version=version)
        return
    check_schema(render_chart(example, version=version), version)


def read(text: str, kind: str, path: Path) -> RouterConfig | VerifierConfig | DraftConfig:
    path.write_text(text)
    return load_config(CLASSES[kind], path=path, environ={}, overrides={}, prefix="SPECMESH")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_services_read_what_the_chart_writes(example: Path, tmp_path: Path) -> None:
    """Each deployment's file, by the class of the service that its command names."""
    objects = render_chart(example)
    deployments = of_kind(objects, "Deployment")
    assert len(deployments) == 1 + len(load(example)["verifiers"]) + len(load(example)["drafts"])
    for name, deployment in deployments.items():
        kind, *rest = container(deployment)["args"]
        assert rest == ["--config", "/etc/specmesh/config/config.toml"]
        text = config_of(objects, name.removeprefix("mesh-specmesh-"))
        config = read(text, kind, tmp_path / "config.toml")
        assert config.server.health_port == 50060
        assert config.server.port == container(deployment)["ports"][0]["containerPort"]


def test_a_verifier_divides_its_model_among_the_gpus_of_its_pod(tmp_path: Path) -> None:
    objects = render_chart(CHART / "examples" / "tensor-parallel.yaml")
    deployment = of_kind(objects, "Deployment")["mesh-specmesh-verifier-pair"]
    assert container(deployment)["resources"]["limits"]["nvidia.com/gpu"] == 2
    config = read(config_of(objects, "verifier-pair"), "verifier", tmp_path / "config.toml")
    assert isinstance(config, VerifierConfig)
    assert (config.tensor_parallel, config.device, config.dtype) == (2, "cuda", "bfloat16")
    # NCCL's buffers between the GPUs; a container has 64 MB unless told otherwise.
    assert {"name": "shm", "mountPath": "/dev/shm"} in container(deployment)["volumeMounts"]


def test_the_chart_is_of_this_version() -> None:
    project = tomllib.loads((CHART.parent.parent.parent / "pyproject.toml").read_text())["project"]
    assert f"appVersion: {project['version']}\n" in (CHART / "Chart.yaml").read_text()

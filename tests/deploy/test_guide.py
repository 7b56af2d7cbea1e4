"""What the documents say about running it, read by what they speak of."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_charts import (
    CHART,
    EXAMPLES,
    ROOT,
    check_schema,
    config_of,
    container,
    helm,
    load,
    needs_tools,
    of_kind,
    pod,
    render,
)

from specmesh.draft.config import DraftConfig
from specmesh.router.config import RouterConfig
from specmesh.runtime.config import ServerConfig
from specmesh.runtime.telemetry.names import METRICS
from specmesh.verifier.config import VerifierConfig

GUIDE = ROOT / "docs" / "operating.md"
DOCUMENTS = [GUIDE, ROOT / "docs" / "threat-model.md", ROOT / "docs" / "compatibility.md"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


@needs_tools
def test_a_first_user_gets_the_pools_of_the_guide() -> None:
    """The values of the guide are installed as they stand: each pool with its own model, GPU and place."""
    [text] = blocks("yaml")
    objects = render(yaml.safe_load(text))
    check_schema(objects, "1.34.0")
    deployments = {name.removeprefix("mesh-specmesh-"): each for name, each in of_kind(objects, "Deployment").items()}
    assert deployments.keys() == {"router", "verifier-main", "draft-small", "draft-lookup"}
    small, lookup = deployments["draft-small"], deployments["draft-lookup"]
    assert small["spec"]["replicas"] == 2
    assert container(small)["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert pod(small)["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert container(small)["image"] == "registry.example.com/specmesh/draft:0.1.0"
    assert container(lookup)["resources"] == load(CHART / "values.yaml")["defaultResources"]["light"]
    assert container(lookup)["image"] == "registry.example.com/specmesh/cpu:0.1.0"


@needs_tools
def test_a_changed_pool_list_changes_these_pools_and_no_others() -> None:
    """A pool more, another GPU, another model: what the user meant."""
    [text] = blocks("yaml")
    before, values = of_kind(render(yaml.safe_load(text)), "Deployment"), yaml.safe_load(text)
    values["models"]["code"] = {"pvc": {"claim": "weights", "path": "code"}}
    more: dict[str, Any] = {"name": "code", "kind": "hf", "model": "code", "gpu": {"count": 1}}
    values["drafts"].append({**more, "nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}})
    after = of_kind(render(values), "Deployment")
    assert after.keys() - before.keys() == {"mesh-specmesh-draft-code"}
    # Routers learn of the pool; nothing else is started anew.
    assert [name for name in before if before[name] != after[name]] == ["mesh-specmesh-router"]


OWN_POOLS: dict[str, Any] = {
    "images": {name: {"repository": f"acme.io/mesh/{name}"} for name in ("router", "verifier", "draft", "cpu")},
    "models": {
        "target": {"pvc": {"claim": "weights", "path": "large"}},
        "small": {"pvc": {"claim": "weights", "path": "small"}},
        "words": {"pvc": {"claim": "weights", "path": "tables/support.npz"}},
    },
    "verifiers": [{"name": "big", "model": "target", "gpu": {"count": 2}, "kvMemory": "30GiB"}],
    "drafts": [
        {
            "name": "t4", "kind": "hf", "model": "small", "quantization": "int8", "trust": "untrusted", "replicas": 3,
            "gpu": {"count": 1}, "nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"},
        },
        {"name": "words", "kind": "table", "model": "words", "replicas": 2},
    ],
}  # fmt: skip


@needs_tools
def test_the_guides_command_installs_a_users_own_pools_and_says_so(tmp_path: Path) -> None:
    """Its own line, without a cluster: the notes name what will run, and every service can read its file."""
    [line] = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("helm install")]
    (tmp_path / "my-values.yaml").write_text(yaml.safe_dump(OWN_POOLS))
    _, *words = shlex.split(line)
    here = {"deploy/helm/specmesh": str(CHART), "my-values.yaml": str(tmp_path / "my-values.yaml")}
    notes = helm(*(here.get(word, word) for word in words), "--dry-run=client").partition("NOTES:")[2]
    assert "big: 1 of target, on 2 nvidia.com/gpu each\n" in notes
    assert (
        "t4: 3 of kind hf, model small, on 1 nvidia.com/gpu each, not trusted: greedy, seeded and one-hot drafts only\n"
        in notes
    )
    assert "words: 2 of kind table, model words, on CPUs\n" in notes
    objects = render(OWN_POOLS)
    verifier = VerifierConfig.model_validate(tomllib.loads(config_of(objects, "verifier-big")))
    assert (verifier.tensor_parallel, verifier.device) == (2, "cuda")
    quantised = DraftConfig.model_validate(tomllib.loads(config_of(objects, "draft-t4")))
    assert quantised.drafter == {"source": "/srv/models/small", "device": "cuda", "quantization": "int8"}
    router = RouterConfig.model_validate(tomllib.loads(config_of(objects, "router")))
    assert {pool.name: pool.trust for pool in router.pools} == {"t4": "untrusted", "words": "full"}


def test_configurations_of_the_guide_are_read() -> None:
    """Every TOML of the guide, by the class of the service that it is for; paths are not opened."""
    texts = [tomllib.loads(text) for text in blocks("toml")]
    servers = [each["server"] for each in texts if "server" in each]
    callers = [each["callers"] for each in texts if "callers" in each]
    assert servers
    assert callers
    for server in servers:
        ServerConfig.model_validate(server)
    for each in callers:
        pools = [{"name": name, "addresses": ["x:1"]} for name in ("small", "lookup")]
        RouterConfig.model_validate({"verifiers": ["v:1"], "pools": pools, "server": servers[0], "callers": each})


def test_keys_of_the_guide_are_keys() -> None:
    """The first column of the table of all services, and pinning."""
    named = re.findall(r"^\| `((?:server|log)\.[^|]*)` \|", GUIDE.read_text(), re.MULTILINE)
    keys = {key for line in named for key in re.findall(r"server\.(\w+)", line)}
    assert keys <= ServerConfig.model_fields.keys()
    assert ServerConfig.model_fields.keys() - keys == set(), "a key that the guide does not name"
    assert "model_digest" in VerifierConfig.model_fields.keys() & DraftConfig.model_fields.keys()


def test_metrics_of_the_guide_exist() -> None:
    text = GUIDE.read_text()
    named = set(re.findall(r"`(?:sum\(rate\()?(specmesh_\w+)", text)) - {"specmesh_part"}
    known = {metric.prometheus for metric in METRICS}
    assert named
    assert named <= known
    assert set(re.findall(r"`(specmesh\.(?:verifier|arm)\.\w+)`", text)) <= {metric.name for metric in METRICS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_files_that_documents_name_exist(document: Path) -> None:
    text = document.read_text()
    named = set(re.findall(r"deploy/[\w./-]*\w", text)) | {
        f"docs/{each}" for each in re.findall(r"\]\((\S+\.md)\)", text)
    }
    assert [each for each in sorted(named) if not (ROOT / each).exists()] == []
    if document == GUIDE:
        assert {f"deploy/helm/specmesh/examples/{path.name}" for path in EXAMPLES} <= named

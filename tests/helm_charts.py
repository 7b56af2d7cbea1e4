"""The chart as helm renders it, and the API schemas of Kubernetes to check it by."""

import functools
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from platform import machine
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "specmesh"
EXAMPLES = tuple(sorted((CHART / "examples").glob("*.yaml")))
TOOLS = ROOT / "build" / "deploy-tools" / "bin"
VERSIONS = ("1.27.0", "1.31.0", "1.34.0", "1.37.0")
"""Of Kubernetes: the oldest that the chart takes, one without and one with dynamic resource allocation, the latest."""
NEWEST = VERSIONS[-1]
CUSTOM_KINDS = {"PodMonitor": "monitoring.coreos.com/v1", "ScaledObject": "keda.sh/v1alpha1"}
"""Kinds that Kubernetes itself does not know."""
CAPABILITIES = ("monitoring.coreos.com/v1",)
Object = dict[str, Any]

needs_tools = pytest.mark.skipif(
    (sys.platform, machine()) != ("linux", "x86_64"), reason="helm, envoy and hadolint are packaged for Linux on x86-64"
)


class Refused(Exception):
    """What helm said."""


def tool(name: str) -> str:
    """Path of a binary."""
    path = TOOLS / name
    assert path.exists(), "run `make build/deploy-tools/.installed`"
    return str(path)


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> str:
    """Standard output. Raises `Refused`."""
    command = [tool("helm"), *arguments, *(["-f", "-"] if values is not None else [])]
    given = json.dumps(values, ensure_ascii=False) if values is not None else None
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise Refused(done.stderr + done.stdout)
    return done.stdout


def render(
    values: Mapping[str, Any] | Path,
    *,
    version: str = NEWEST,
    capabilities: Iterable[str] = CAPABILITIES,
    release: str = "mesh",
    namespace: str = "ai",
) -> list[Object]:
    """Every object of a release, tests included. Raises `Refused`."""
    arguments = ["template", release, str(CHART), "-n", namespace, "--kube-version", version]
    arguments += [word for capability in capabilities for word in ("-a", capability)]
    if isinstance(values, Path):
        return parse(helm(*arguments, "-f", str(values)))
    return parse(helm(*arguments, values=values))


def parse(text: str) -> list[Object]:
    return [each for each in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if each]


def load(path: Path) -> Object:
    """Values of an example."""
    return yaml.safe_load(path.read_text())


def of_kind(objects: Sequence[Object], kind: str) -> dict[str, Object]:
    """Objects by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def one(objects: Sequence[Object], kind: str, name: str) -> Object:
    return of_kind(objects, kind)[f"mesh-specmesh-{name}"]


def pod(deployment: Object) -> Object:
    return deployment["spec"]["template"]["spec"]


def container(deployment: Object) -> Object:
    [only] = pod(deployment)["containers"]
    return only


def config_of(objects: Sequence[Object], name: str) -> str:
    return one(objects, "ConfigMap", name)["data"]["config.toml"]


@functools.cache
def _definitions(version: str) -> Registry:
    contents = schema_contents(f"kubernetes-json-schema/v{version}-local-strict/_definitions.json", version)
    return Resource.from_contents(contents) @ Registry()


@functools.cache
def _validator(version: str, kind: str, api_version: str) -> jsonschema.Draft202012Validator:
    group, _, number = api_version.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0] + '-' if group else ''}{number}.json"
    schema = schema_contents(f"kubernetes-json-schema/v{version}-local-strict/{name}", version)
    return jsonschema.Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(version))


def check_schema(objects: Sequence[Object], version: str) -> None:
    """Raises `jsonschema.ValidationError` for a field that this version of Kubernetes does not know, or a bad value."""
    for each in objects:
        if CUSTOM_KINDS.get(each["kind"]) != each["apiVersion"]:
            _validator(version, each["kind"], each["apiVersion"]).validate(each)

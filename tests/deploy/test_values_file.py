"""values.yaml is the chart's reference: a key that the schema takes or a template reads stands there."""

import json
import re
from collections.abc import Iterator
from typing import Any

from helm_charts import CHART, load

from specmesh.router.policies import POLICIES

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = load(CHART / "values.yaml")
TEXT = (CHART / "values.yaml").read_text()
KUBERNETES = {
    "affinity", "annotations", "egress", "env", "labels", "peers", "resources", "tolerations", "topologySpread",
    "volumeMounts", "volumes",
}  # fmt: skip
"""Definitions of what is as in Kubernetes: their inner keys are its own."""


def resolved(schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name of the definition, if one is meant, and what it says."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return name, SCHEMA["definitions"][name] if name else schema


def keys(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Dotted paths; an item of a list or an entry of a table is `*`."""
    name, schema = resolved(schema)
    if name in KUBERNETES:
        return
    for key, inner in schema.get("properties", {}).items():
        yield f"{path}.{key}".lstrip(".")
        yield from keys(inner, f"{path}.{key}")
    for inner in schema.get("allOf", ()):
        yield from keys(inner, path)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from keys(inner, f"{path}.*")


def comments() -> dict[str, str]:
    """What is said of each key at the top: in the lines before it, and beside and among its own."""
    said: dict[str, str] = {}
    before, current = "", ""
    for line in TEXT.splitlines():
        if key := re.match(r"(\w+):", line):
            current, said[key[1]], before = key[1], before, ""
        comment = line.partition("#")[2]
        if line.startswith("#"):
            before += f"{comment}\n"
        elif comment:
            said[current] += f"{comment}\n"
    return said


def stands(path: str, said: dict[str, str]) -> bool:
    """As a key with its default, or as a word of the comment on the key at the top."""
    parts = path.split(".")
    here: Any = DEFAULTS
    for part in parts:
        here = here.get(part) if isinstance(here, dict) else None
    # Drafts, and routers where they say so, take what is said of verifiers.
    text = said[parts[0]] + (said["verifiers"] if parts[0] in ("drafts", "router") else "")
    return here is not None or bool(re.search(rf"\b{re.escape(parts[-1])}\b", text))


def test_every_key_of_the_schema_stands_in_the_values() -> None:
    given = [path for path in keys(SCHEMA) if path != "global"]
    assert len(given) > 150
    said = comments()
    assert [path for path in given if not stands(path, said)] == []
    of_components = set(SCHEMA["properties"]["router"]["properties"]) - DEFAULTS["router"].keys()
    assert [key for key in sorted(of_components) if not re.search(rf"\b{key}\b", said["router"])] == []


def test_every_key_that_a_template_reads_is_one_of_the_schema() -> None:
    known = set(keys(SCHEMA))
    read = {
        path
        for file in (CHART / "templates").rglob("*")
        if file.is_file()
        for path in re.findall(r"(?:\.Values|\$v)\.([A-Za-z][\w.]*\w)", file.read_text())
    }
    assert len(read) > 40
    assert sorted(read - known) == []


def test_every_default_is_one_that_the_schema_takes() -> None:
    """Keys that stand in the file but are in no schema would be refused to whoever changes them."""

    def paths(table: dict[str, Any], path: str = "") -> Iterator[str]:
        for key, value in table.items():
            yield f"{path}.{key}".lstrip(".")
            if isinstance(value, dict) and f"{path}.{key}".lstrip(".") not in opaque:
                yield from paths(value, f"{path}.{key}")

    opaque = {"router.resources", *(f"defaultResources.{each}" for each in ("gpu", "model", "light"))}
    assert sorted(set(paths(DEFAULTS)) - set(keys(SCHEMA))) == []


def test_scaling_is_explained_with_all_its_keys() -> None:
    for key in SCHEMA["definitions"]["autoscaling"]["properties"]:
        assert re.search(rf"^#   autoscaling .*\b{key}\b", TEXT, re.MULTILINE), key
    assert DEFAULTS["router"]["autoscaling"].keys() == {"enabled", "kind", "min", "max", "target"}


def test_policies_of_the_schema_are_those_that_there_are() -> None:
    assert set(SCHEMA["properties"]["router"]["properties"]["policy"]["properties"]["name"]["enum"]) == set(POLICIES)

"""What a person's first second is spent on: modules are asked in a fresh interpreter."""

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers"}
SERVICES = {"specmesh.runtime", "specmesh.router", "specmesh.draft", "specmesh.verifier", "pydantic", "numpy", "rich"}


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "module", ["cli", "command.up", "command.demo", "command.generate", "command.bench", "router.__main__"]
)
def test_what_users_touch_never_imports_torch(module: str) -> None:
    assert not HEAVY & modules_after(f"import specmesh.{module}")


def test_the_client_needs_grpc_and_protobuf_only() -> None:
    assert not (HEAVY | SERVICES) & modules_after("import specmesh.client")

import os
import subprocess
import sys

import pytest

from specmesh.runtime.environment import SETTINGS

ORDER = """
import os, runpy, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("grpc", "torch", "numpy"):
            print(name, os.environ.get("GRPC_EXPERIMENTS"), os.environ.get("GOMP_SPINCOUNT"), flush=True)
        return None

sys.meta_path.insert(0, Watch())
sys.argv = ["service", "--help"]
runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
"""


def imports_of(module: str, **environment: str) -> list[list[str]]:
    """What the environment said when each library was first looked for."""
    bare = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    script = ORDER.replace("MODULE", repr(module))
    run = subprocess.run(
        [sys.executable, "-c", script], env=bare | environment, capture_output=True, text=True, timeout=60, check=True
    )
    return [line.split() for line in run.stdout.splitlines() if line.startswith(("grpc ", "torch ", "numpy "))]


@pytest.mark.parametrize("module", ["specmesh.verifier", "specmesh.draft", "specmesh.router"])
def test_a_service_sets_its_environment_before_the_libraries_that_read_it(module: str) -> None:
    seen = imports_of(module)
    assert "grpc" in {name for name, *_ in seen}
    for _, experiments, spins in seen:
        assert (experiments, spins) == (SETTINGS["GRPC_EXPERIMENTS"], SETTINGS["GOMP_SPINCOUNT"])


def test_what_is_set_already_stays() -> None:
    seen = imports_of("specmesh.router", GRPC_EXPERIMENTS="-nothing", GOMP_SPINCOUNT="7")
    assert seen
    assert all(line[1:] == ["-nothing", "7"] for line in seen)

"""How SpecMesh starts its own modules as processes."""

import sys

from specmesh.runtime.modules import module_command, module_of


def test_the_module_is_told_from_the_command_line_that_starts_it() -> None:
    assert module_of(module_command("specmesh.router", ["--set", "name=-m"])) == "specmesh.router"
    assert module_of([sys.executable, "-m", "pytest", "specmesh.router"]) == ""
    assert module_of([]) == ""

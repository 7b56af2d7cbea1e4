"""How a module of SpecMesh is started as a process."""

import sys
from collections.abc import Sequence
from itertools import pairwise


def module_command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Its command line, program first; nothing is imported from the folder that the process stands in (`-P`)."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_of(command: Sequence[str]) -> str:
    """The module that a command line of `module_command` starts; empty for another command."""
    return next((module for flag, module in pairwise(command) if flag == "-m" and module.startswith("specmesh.")), "")

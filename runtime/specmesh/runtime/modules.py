"""How a module of SpecMesh is started as a process."""

import sys
from collections.abc import Sequence


def module_command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Its command line, program first; nothing is imported from the folder that the process stands in (`-P`)."""
    return [sys.executable, "-P", "-m", module, *arguments]

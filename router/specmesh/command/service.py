"""`specmesh verifier | draft | router`: become that service."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from specmesh.runtime.modules import module_command


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Run the module in place of this process."""
    command = module_command(module, arguments)
    if os.name == "posix":
        os.execv(sys.executable, command)
    sys.exit(subprocess.call(command))

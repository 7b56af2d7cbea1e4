"""`specmesh verifier | draft | router`: become that service."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Run `python -m MODULE ARGUMENTS` in place of this process."""
    command = [sys.executable, "-m", module, *arguments]
    if os.name == "posix":
        os.execv(sys.executable, command)
    sys.exit(subprocess.call(command))

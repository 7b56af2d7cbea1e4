"""`specmesh verifier | draft | router`: become that service."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Run the module in place of this process; nothing is imported from the folder one stands in (`-P`)."""
    command = [sys.executable, "-P", "-m", module, *arguments]
    if os.name == "posix":
        os.execv(sys.executable, command)
    sys.exit(subprocess.call(command))

"""What every benchmark says about where it ran, and how it sums up a list of times."""

import math
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version


def machine() -> dict[str, object]:
    """Enough to judge a figure by."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = {name: version(name) for name in ("grpcio", "protobuf", "torch", "transformers")}
    return {"cores": cores, "platform": platform.platform(), "python": platform.python_version(), **packages}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Nearest rank."""
    ordered = sorted(values)
    return {f"p{percent}": round(ordered[math.ceil(percent / 100 * len(ordered)) - 1], 4) for percent in (50, 90, 99)}

"""What every benchmark says about where it ran, and how it sums up a list of times."""

import math
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version

import psutil


def machine() -> dict[str, object]:
    """Enough to judge a figure by."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = {name: version(name) for name in ("grpcio", "protobuf", "torch", "transformers")}
    return {"cores": cores, "platform": platform.platform(), "python": platform.python_version(), **packages}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Nearest rank."""
    ordered = sorted(values)
    return {f"p{percent}": round(ordered[math.ceil(percent / 100 * len(ordered)) - 1], 4) for percent in (50, 90, 99)}


class OthersWork:
    """CPU that processes other than this one and its children take while it is watched."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._all, self._own = _busy_seconds(), _own_seconds()

    def cores(self) -> float:
        """Cores that the others have kept busy since this was made."""
        others = (_busy_seconds() - self._all) - (_own_seconds() - self._own)
        return max(others, 0.0) / (time.monotonic() - self._started)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_seconds() -> float:
    """Of this process and its living descendants."""
    this = psutil.Process()
    taken = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return float(sum(times.user + times.system for times in taken))

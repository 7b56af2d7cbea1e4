"""What is fetched or converted once and kept for every later start."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import FileLock


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """`SPECMESH_CACHE`, else this platform's place for a user's caches."""
    if given := environ.get("SPECMESH_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "specmesh" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "specmesh"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmesh"


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, made by `build` if it is not there yet.

    `build` fills an empty folder, which is renamed when it is whole: a folder that exists is complete, whoever was
    killed. Processes that start together wait for the one that builds.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            _build(folder, build)
    return folder


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    try:
        build(partial)
        partial.chmod(0o755)  # mkdtemp's is for the owner alone
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)

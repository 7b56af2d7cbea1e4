"""Which build of the mesh this process runs."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache  # Each look parses the package's metadata, which takes a millisecond.
def build_version() -> str:
    """Version of the installed package; `unpackaged` in a source tree that is not installed."""
    try:
        return version("specmesh")
    except PackageNotFoundError:
        return "unpackaged"

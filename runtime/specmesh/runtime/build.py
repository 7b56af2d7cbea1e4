"""Which build of the mesh this process runs."""

from importlib.metadata import PackageNotFoundError, version


def build_version() -> str:
    """Version of the installed package; `unpackaged` in a source tree that is not installed."""
    try:
        return version("specmesh")
    except PackageNotFoundError:
        return "unpackaged"

"""Check what the two wheels hold: `python packaging/check_wheels.py DIST` (standard library only)."""

import sys
import zipfile
from collections import Counter
from pathlib import Path

CLIENT = {
    "specmesh/client.py",
    "specmesh/_client_channel.py",
    "specmesh/_client_checks.py",
    "specmesh/_client_request.py",
    "specmesh/_client_results.py",
    "specmesh/_client_run.py",
    "specmesh/_client_tracing.py",
    "specmesh/py.typed",
    "specmesh/v1/router_service.proto",
    "specmesh/v1/router_service_pb2.py",
    "specmesh/v1/router_service_pb2.pyi",
    "specmesh/v1/router_service_pb2_grpc.py",
}
ROOTS = ("protos", "runtime", "kernels", "draft_service", "verifier_service", "router")


def main(dist: Path) -> None:
    """Stop with the first fault found."""
    contents = {wheel.name: files_of(wheel) for wheel in dist.glob("*.whl")}
    client = one(contents, "specmesh_client-")
    server = one(contents, "specmesh-")
    check(set(client) == CLIENT, f"the client's wheel holds {sorted(set(client) ^ CLIENT)} against its list")
    twice = [name for name, count in Counter(client + server).items() if count > 1]
    check(not twice, f"in both wheels, or twice in one: {twice}")
    check(Counter(client + server)["specmesh/py.typed"] == 1, "py.typed must be shipped exactly once")
    outside = [name for name in client + server if not name.startswith("specmesh/")]
    check(not outside, f"outside the namespace: {outside}")
    check("specmesh/__init__.py" not in client + server, "specmesh/__init__.py would hide the other roots")
    missing = sources() - set(client + server)
    check(not missing, f"in no wheel: {sorted(missing)}")


def sources() -> set[str]:
    """What the source roots hold, by import path: code, protos, package data."""
    root = Path(__file__).resolve().parent.parent
    paths = (path.relative_to(root / top) for top in ROOTS for path in (root / top / "specmesh").rglob("*"))
    return {path.as_posix() for path in paths if path.suffix not in ("", ".pyc") and "__pycache__" not in path.parts}


def files_of(wheel: Path) -> list[str]:
    """Names in a wheel, its metadata aside."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def one(contents: dict[str, list[str]], prefix: str) -> list[str]:
    """The content of the only wheel whose name starts so."""
    found = [files for name, files in contents.items() if name.startswith(prefix)]
    check(len(found) == 1, f"{len(found)} wheels named {prefix}*")
    return found[0]


def check(true: bool, message: str) -> None:
    """Stop with `message` unless `true`."""
    if not true:
        sys.exit(f"wheels: {message}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

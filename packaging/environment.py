"""Create the virtual environment and install into it; needs Python's standard library only.

`python3 packaging/environment.py FOLDER EXTRA`: third-party packages at the versions of requirements.lock, then
SpecMesh itself from this checkout, editable. Torch comes first and as a CPU build where there is no GPU to use.
"""

import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
SAID_EVERY_SECONDS = 5.0
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def main(folder: str, extra: str) -> None:
    """Make `folder` an environment with the extra `extra` (demo, dev)."""
    check_interpreter()
    python = create(Path(folder))
    say(f"Installing SpecMesh [{extra}] into {folder}; the first time this downloads about 300 MB")
    install_torch(python)
    pip(python, "install", "-c", str(LOCK), "-e", str(ROOT / "packaging" / "client"), "-e", f"{ROOT}[{extra}]")


def check_interpreter() -> None:
    """Stop with what to do when this Python cannot create environments."""
    if sys.version_info < (3, 11):  # noqa: UP036  this file runs before anything has checked it
        sys.exit(f"SpecMesh needs Python 3.11 or newer; {sys.executable} is {platform.python_version()}.")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(
            f"{sys.executable} cannot create virtual environments ({error}).\n"
            f"On Debian and Ubuntu: sudo apt-get install python{version}-venv; then run the same command again."
        )


def create(folder: Path) -> Path:
    """An environment in `folder`; one that is half made is made anew. Returns its interpreter."""
    python = folder / ("Scripts/python.exe" if sysconfig.get_platform().startswith("win") else "bin/python")
    whole = "looking at the environment"
    if not python.exists() or run(str(python), "-m", "pip", "--version", quiet=True, doing=whole) != 0:
        say(f"Creating the environment {folder}")
        if run(sys.executable, "-m", "venv", "--clear", str(folder), doing="creating the environment") != 0:
            sys.exit(f"The environment {folder} could not be created; the message above says why.")
    return python


def install_torch(python: Path) -> None:
    """The configured sources' CPU build if they have one; PyTorch's CPU index on Linux without a GPU; else plain."""
    version = torch_version()
    installed = f"import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '{version}')"
    if run(str(python), "-c", installed, quiet=True, doing="looking for torch") == 0:
        return
    wanted = f"torch=={version}"
    dry_run = ("-m", "pip", "install", "--dry-run", "--no-deps", f"{wanted}+cpu")
    if run(str(python), *dry_run, quiet=True, doing="asking for a CPU build of torch") == 0:
        say(f"Installing {wanted}, CPU build (about 190 MB)")
        pip(python, "install", "-c", str(LOCK), f"{wanted}+cpu")
    elif platform.system() == "Linux" and not has_nvidia_driver():
        say(f"Installing {wanted}, CPU build from {TORCH_CPU_INDEX} (about 190 MB)")
        pip(python, "install", "--no-deps", "--index-url", TORCH_CPU_INDEX, wanted)
    else:
        say(f"Installing {wanted}")
        pip(python, "install", "-c", str(LOCK), wanted)


def torch_version() -> str:
    """The version that requirements.lock names."""
    found = re.search(r"^torch==(\S+)$", LOCK.read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"{LOCK.name} does not name a version of torch.")
    return found[1]


def has_nvidia_driver() -> bool:
    """Whether a GPU build of torch would find a driver."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def pip(python: Path, *arguments: str) -> None:
    """Run pip, with its progress; stop when it fails."""
    if run(str(python), "-m", "pip", "--disable-pip-version-check", *arguments, doing="pip is at work") != 0:
        sys.exit(f"pip {' '.join(arguments)} failed; the message above says why. Run the same command again to go on.")


def run(*command: str, doing: str, quiet: bool = False, said_every_seconds: float = SAID_EVERY_SECONDS) -> int:
    """Exit status of a command; now and then it is said what is done and for how long already."""
    sink = subprocess.DEVNULL if quiet else None
    began = time.monotonic()
    with subprocess.Popen(command, stdout=sink, stderr=sink) as process:
        while True:
            try:
                return process.wait(said_every_seconds)
            except subprocess.TimeoutExpired:
                say(f"{doing}: {time.monotonic() - began:.0f} s")
            except BaseException:
                process.kill()
                raise


def say(message: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"==> {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: environment.py FOLDER EXTRA")
    main(sys.argv[1], sys.argv[2])

"""The images. They cannot be built here: what goes into them is installed, and the file that builds them is read."""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helm_charts import CHART, ROOT, load, needs_tools, tool

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
INSTALL = ROOT / "deploy" / "install.sh"
LOCK = ROOT / "requirements.lock"
patient = pytest.mark.timeout(900)
"""Downloads and copies a gigabyte: under a minute on a machine of its own."""
TARGETS = {"router", "draft", "verifier", "cpu"}
BASE_MEGABYTES = 131
"""Of python:3.11-slim-bookworm, unpacked."""
ROUTER_MEGABYTES = 300


def instructions() -> list[str]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def stages() -> dict[str, tuple[str, list[str]]]:
    """Name to parent and instructions."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in instructions():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            found[match[2]] = match[1], []
        elif found:
            found[list(found)[-1]][1].append(line)
    return found


def line_of(stage: str) -> list[str]:
    """Its instructions after those of the stages that it is built on."""
    parent, own = stages()[stage]
    return [*(line_of(parent) if parent in stages() else []), *own]


@needs_tools
def test_the_dockerfile_is_lint_free() -> None:
    done = subprocess.run([tool("hadolint"), str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0


def test_every_image_of_the_chart_has_a_target() -> None:
    assert stages().keys() >= TARGETS
    repositories = {image["repository"] for image in load(CHART / "values.yaml")["images"].values()}
    assert repositories == {f"specmesh/{target}" for target in TARGETS}


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_images_run_one_command_as_the_charts_user(target: str) -> None:
    lines = line_of(target)
    security = load(CHART / "values.yaml")["podSecurity"]
    users = [line for line in lines if line.startswith("USER ")]
    assert users[-1] == f"USER {security['runAsUser']}:{security['runAsGroup']}"
    [entrypoint] = [line for line in lines if line.startswith("ENTRYPOINT ")]
    assert json.loads(entrypoint.removeprefix("ENTRYPOINT ")) == ["specmesh"]
    [copied] = [line for line in lines if line.startswith("COPY ") and "/opt/specmesh" in line]
    assert copied == f"COPY --from=python-{_stage_of(target)} /opt/specmesh /opt/specmesh"


def _stage_of(target: str) -> str:
    return target if target in ("router", "cpu") else "gpu"


def test_nothing_is_unpinned() -> None:
    """One base image by its full version; packages by version; everything of Python by the lock."""
    parents = {parent for parent, _ in stages().values()} - stages().keys()
    assert parents == {"${PYTHON_IMAGE}"}
    assert re.search(r"^ARG PYTHON_IMAGE=python:\d+\.\d+\.\d+-slim-\w+$", DOCKERFILE.read_text(), re.MULTILINE)
    packages = [word for line in instructions() if "apt-get install" in line for word in line.split() if "=" in word]
    assert sorted(word.partition("=")[0] for word in packages) == ["gcc", "libc6-dev"]
    installs = [line for line in INSTALL.read_text().splitlines() if line.lstrip().startswith("in_venv install")]
    assert all('-c "$lock"' in line or "==$version" in line for line in installs)


def test_byte_code_says_nothing_of_when_it_was_compiled() -> None:
    compiled = [line for line in instructions() if "compileall" in line]
    assert len(compiled) == len(TARGETS) - 1, "draft and verifier share theirs"
    assert all("--invalidation-mode unchecked-hash" in line for line in compiled)


@pytest.mark.slow
def test_the_same_files_give_the_same_wheels(tmp_path: Path) -> None:
    """As the file's first stage builds them, twice."""
    [epoch] = re.findall(r"^ARG SOURCE_DATE_EPOCH=(\d+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert "ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH}" in stages()["wheels"][1]
    built = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        command += ["--wheel-dir", str(folder), str(ROOT), str(ROOT / "packaging" / "client")]
        subprocess.run(command, env=os.environ | {"SOURCE_DATE_EPOCH": epoch}, check=True, timeout=120)
        built.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert len(built[0]) == 2
    assert built[0] == built[1]


def test_an_image_sees_no_gpu_that_its_pod_was_not_granted() -> None:
    """What was granted is named by the device plugin or the claim; a name in the image would hold where none was."""
    assert "NVIDIA_VISIBLE_DEVICES" not in DOCKERFILE.read_text()


def test_what_is_copied_is_sent() -> None:
    """Every source of a COPY passes the list of what a build is given."""
    allowed = {
        line[1:] for line in (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copies = [line.split()[1:-1] for line in instructions() if line.startswith("COPY ") and "--from" not in line]
    sources = {source for line in copies for source in line}
    assert sources == allowed
    assert [source for source in sources if not (ROOT / source).exists()] == []


def lend_torch(folder: Path) -> None:
    """Put the tests' own torch where the stage would install it, if it is the build that the stage asks for.

    To unpack another copy takes a minute. pip finds it installed, with the version it was told; anything else it gets.
    """
    [version] = re.findall(r"^torch==(\S+)$", LOCK.read_text(), re.MULTILINE)
    found = importlib.metadata.distribution("torch")
    if found.version != f"{version}+cpu":
        return
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
        (site / top).symlink_to(found.locate_file(top))


@contextmanager
def installed_stage(stage: str, folder: Path, wheels: Path) -> Iterator[Path]:
    """The stage's environment, by its interpreter. Removed at the end: it is large."""
    environment = os.environ | {"TORCH_INDEX": "", "PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}"}
    command = ["sh", str(INSTALL), stage, str(folder), str(wheels), str(LOCK)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder / "bin" / "python"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheels() -> Path:
    """Those that the tests themselves run on."""
    folder = ROOT / "build" / "dist"
    assert list(folder.glob("specmesh*.whl")), "run `make build/dist/.built`"
    return folder


def says(python: Path, code: str) -> str:
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def compile_as_the_image_does(stage: str, python: Path) -> None:
    [line] = [line for line in line_of(stage) if "compileall" in line]
    [passed_over] = re.findall(r"^ARG PASSED_OVER=(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    given = line.removeprefix("RUN ").replace("${PASSED_OVER}", passed_over)
    command = given.replace("/opt/specmesh/bin/python", str(python)).replace("/opt/specmesh", str(python.parent.parent))
    subprocess.run(shlex.split(command), check=True, timeout=300)


def test_what_is_passed_over_when_compiling_cannot_be_compiled() -> None:
    """A file of torch that is for newer Pythons. All else has to compile, or the image is not built."""
    assert "|| true" not in DOCKERFILE.read_text()
    [pattern] = re.findall(r"^ARG PASSED_OVER=(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    files = [str(path) for path in importlib.metadata.files("torch") or () if path.suffix == ".py"]
    [found] = [file for file in files if re.search(pattern, f"/{file}")]
    text = importlib.metadata.distribution("torch").read_text(f"../{found}") or ""
    if sys.version_info < (3, 12):
        with pytest.raises(SyntaxError):
            compile(text, found, "exec")


INSTALLED = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"


@patient
@pytest.mark.slow
def test_the_routers_image_is_small_and_has_no_torch(tmp_path: Path, wheels: Path) -> None:
    """Under 300 MB with its base; it starts as far as its configuration, and prompt lookup runs in it too."""
    with installed_stage("router", tmp_path / "router", wheels) as python:
        compile_as_the_image_does("python-router", python)
        installed = {name.replace("_", "-") for name in says(python, INSTALLED).split()}
        assert {"specmesh", "specmesh-client", "tokenizers", "prometheus-client"} <= installed
        assert not {"torch", "transformers", "pip", "setuptools"} & installed
        size = sum(path.lstat().st_size for path in (tmp_path / "router").rglob("*") if path.is_file()) / 1e6
        assert size + BASE_MEGABYTES < ROUTER_MEGABYTES
        assert list((tmp_path / "router").rglob("*.pyc")), "a read-only root keeps no byte code"
        command = [str(python.parent / "specmesh"), "router", "--set", "verifiers=[]"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert "verifiers" in done.stderr
        lookup = "from specmesh.draft.drafter import make_drafter; print(make_drafter('lookup', {}).info.kind)"
        assert says(python, lookup) == "lookup"


@patient
@pytest.mark.slow
def test_the_cpu_image_serves_models(tmp_path: Path, wheels: Path) -> None:
    lend_torch(tmp_path / "cpu")
    with installed_stage("cpu", tmp_path / "cpu", wheels) as python:
        compile_as_the_image_does("python-cpu", python)
        code = "import torch, specmesh.model.loading, specmesh.verifier.__main__; print(torch.version.cuda)"
        assert says(python, code) == "None"
        assert "bitsandbytes" not in says(python, INSTALLED).split()


@patient
@pytest.mark.slow
def test_the_gpu_images_can_be_had_at_the_versions_of_the_lock(tmp_path: Path, wheels: Path) -> None:
    """Resolved and not installed, which would take gigabytes: every package has its version in the lock."""
    lock = dict(line.lower().split("==") for line in LOCK.read_text().split() if "==" in line)
    [client], [server] = wheels.glob("specmesh_client-*.whl"), wheels.glob("specmesh-*.whl")
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "-c", str(LOCK)]
    subprocess.run([*command, "--report", str(report), str(client), f"{server}[gpu,otel]"], check=True, timeout=800)
    resolved = {
        each["metadata"]["name"].lower(): each["metadata"]["version"].partition("+")[0]
        for each in json.loads(report.read_text())["install"]
    }
    ours = {"specmesh", "specmesh-client"}
    assert {"torch", "triton", "bitsandbytes", "transformers"} <= resolved.keys()
    same = {name.replace("-", "_").replace(".", "_"): version for name, version in lock.items()}
    # The CUDA libraries are pinned by torch itself.
    free = {name for name in resolved if not name.startswith("nvidia-")} - ours
    unpinned = {name for name in free if same.get(name.replace("-", "_").replace(".", "_")) != resolved[name]}
    assert unpinned == set()

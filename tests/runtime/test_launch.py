import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVICE = """
import asyncio, sys
from specmesh.runtime.config import ConfigError, ConfigModel, ServerConfig
from specmesh.runtime.launch import run_service
from specmesh.runtime.serving import MeshServer, announce_ready

class Config(ConfigModel):
    server: ServerConfig = ServerConfig()
    model: str = "good"

async def serve(config):
    server = MeshServer(config.server, ["example"])
    await server.start()
    try:
        if config.model == "bad":
            raise ConfigError("model: cannot be loaded")
        server.set_serving()
        announce_ready(server.address)
        await server.serve_until_signalled()
    finally:
        await server.stop(0)

sys.exit(run_service("example", Config, serve))
"""

LOADING = """
import asyncio, os
from specmesh.runtime.config import ServerConfig
from specmesh.runtime.serving import MeshServer

async def load_for_ever():
    assert os.getpid() == 1
    await MeshServer(ServerConfig(), ["example"]).start()
    print(open("/proc/self/stat").read().split()[0], flush=True)  # its number outside
    await asyncio.to_thread(__import__("time").sleep, 600)

asyncio.run(load_for_ever())
"""


@contextmanager
def service(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    script = path / "service.py"
    script.write_text(SERVICE)
    pipe = subprocess.PIPE
    command: Sequence[str] = [sys.executable, str(script), *arguments]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ready_line(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_one_line_says_where_the_service_is_ready(tmp_path: Path) -> None:
    with service(tmp_path) as process:
        line = ready_line(process)
        assert line["event"] == "ready"
        assert int(line["address"].rpartition(":")[2]) > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_c32_a_signal_drains_and_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    """C32: exit 0 within the drain time."""
    with service(tmp_path) as process:
        ready_line(process)
        process.send_signal(number)
        assert process.wait(10) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="containers and their process namespaces are Linux's")
def test_c32_the_first_process_of_a_container_ends_when_told_while_it_loads() -> None:
    """C32: the kernel keeps a signal from process 1 that it does not handle; the pod would stay for its whole grace."""
    command = ["unshare", "--map-root-user", "--fork", "--pid", "--kill-child", sys.executable, "-c", LOADING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            os.kill(int(process.stdout.readline()), signal.SIGTERM)
            assert process.wait(10) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_the_end_of_standard_input_drains_when_asked_for(tmp_path: Path) -> None:
    with service(tmp_path, "--exit-with-stdin") as process:
        ready_line(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--set", "model=bad"], "specmesh example: model: cannot be loaded\n"),
        (["--set", "modle=x"], "specmesh example: modle: no such key (from --set modle)\n"),
        (["--set", "x"], "specmesh example: --set x: expected KEY=VALUE\n"),
        (["--config", "absent.toml"], "cannot read configuration file absent.toml: No such file or directory\n"),
    ],
)
def test_c31_a_failed_load_is_one_line_and_a_status(tmp_path: Path, arguments: list[str], line: str) -> None:
    """C31: a failed load exits non-zero with one clear line."""
    with service(tmp_path, *arguments) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert errors.endswith(line)
    assert errors.count("\n") == 1

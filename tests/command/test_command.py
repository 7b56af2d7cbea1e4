"""The `specmesh` command as a user runs it: processes of its own, over real gRPC."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from rich.console import Console

from specmesh.cli import main, prompt_of
from specmesh.client import AsyncClient
from specmesh.command.bench import run_load
from specmesh.command.generate import generate
from specmesh.command.report import PARTS
from specmesh.v1 import router_service_pb2 as pb

VOCABULARY = 16
COMMAND = [sys.executable, "-m", "specmesh.cli"]


@pytest.fixture(scope="module")
def mesh_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mesh of a table target, prompt lookup in a good pool and in one that nobody trusts."""
    folder = tmp_path_factory.mktemp("mesh")
    logits = np.random.default_rng(5).normal(size=(VOCABULARY,) * 3).astype(np.float32) * 4
    np.savez(folder / "target.npz", logits=logits, vocabulary_size=VOCABULARY)
    path = folder / "mesh.toml"
    path.write_text(
        f"""
        [verifier]
        model = 'table:{folder / "target.npz"}'
        [[drafts]]
        pool = "lookup"
        kind = "lookup"
        [[drafts]]
        pool = "other"
        trust = "untrusted"
        kind = "lookup"
        [router]
        sessions = {{ hold_out = 0 }}
        """
    )
    return path


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "up", "--config", str(path), "--port", "0", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def wait_ready(process: subprocess.Popen[str], said: list[str] | None = None) -> str:
    """The router's address; what was said so far goes to `said`, and is in the failure if it never is ready."""
    assert process.stderr is not None
    said = [] if said is None else said
    for line in process.stderr:
        said.append(line)
        if found := re.match(r"ready at (\S+);", line):
            return found[1]
    raise AssertionError("".join(said))


def specmesh(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return done


def test_no_file_of_the_folder_one_stands_in_is_run(tmp_path: Path) -> None:
    """Not even one named as a module of Python's."""
    for name in ("queue", "asyncio", "grpc"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of this folder ran')\n")
    command = [sys.executable, "-P", "-m", "specmesh.cli", "router", "--set", "nonsense=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "nonsense" in done.stderr
    assert "a file of this folder ran" not in done.stderr


@pytest.fixture(scope="module")
def address(mesh_file: Path) -> Iterator[str]:
    """A mesh for the tests that only use it."""
    with start(mesh_file) as process:
        try:
            yield wait_ready(process)
        finally:
            process.terminate()


GENERATE = ("generate", "--tokens", "1,2,3", "--max-tokens", "24", "--address")


def test_generate_prints_one_json_object(address: str) -> None:
    answer = json.loads(specmesh(*GENERATE, address, "--temperature", "0", "--json").stdout)
    assert len(answer["token_ids"]) == 24
    assert answer["finish_reason"] == "LENGTH"
    assert answer["usage"]["input_tokens"] == 3
    assert answer["usage"]["output_tokens"] == 24
    assert sum(step["emitted"] for step in answer["steps"]) == 24
    for step in answer["steps"]:
        assert set(step["ms"]) == set(PARTS)
        assert step["accepted"] <= step["drafted"]
        assert (step["reward"] is None) == (step["drafted"] == 0)
        assert step["fallback_reason"] in (None, "POLICY", "TIMEOUT", "NO_ARM", "INVALID_BLOCK", "FORBIDDEN")


def test_generate_shows_the_output_and_what_each_arm_did(address: str) -> None:
    done = specmesh(*GENERATE, address, "--temperature", "0")
    assert len(done.stdout.split(",")) == 24
    assert "What each arm did" in done.stderr
    assert "3 tokens in, 24 out" in done.stderr
    assert "ended by LENGTH" in done.stderr


async def test_a_terminal_shows_that_the_first_token_is_awaited_and_a_file_does_not(address: str) -> None:
    for terminal in (True, False):
        output, console = io.StringIO(), Console(file=io.StringIO(), force_terminal=terminal)
        options: Any = {"max_output_tokens": 5}
        await generate(lambda: AsyncClient(address), [1, 2, 3], options, as_json=False, output=output, console=console)
        assert output.getvalue().count(",") == 4
        assert ("waiting for the first token" in console.file.getvalue()) is terminal  # type: ignore[attr-defined]


def test_the_columns_and_states_of_arms_are_explained() -> None:
    said = specmesh("drafts", "--help").stdout
    states = [name.removeprefix("ARM_STATE_") for name in pb.ArmState.keys()[1:]]
    assert all(word in said for word in ("replicas", "acceptance", "ms to a block", "share of steps", *states))


def test_the_same_seed_gives_the_same_ids_with_drafts_and_without(address: str) -> None:
    outputs = [
        json.loads(specmesh(*GENERATE, address, "--seed", "0", "--drafts", drafts, "--json").stdout)
        for drafts in ("auto", "off", "lookup")
    ]
    assert outputs[0]["token_ids"] == outputs[1]["token_ids"] == outputs[2]["token_ids"]
    assert outputs[0]["seed"] == 0
    assert {step["arm"] for step in outputs[1]["steps"]} == {None}


def test_drafts_lists_every_arm(address: str) -> None:
    arms = json.loads(specmesh("drafts", "--address", address, "--json").stdout)
    assert {arm["arm"].partition("@")[0] for arm in arms} == {"lookup", "other"}
    assert {arm["state"] for arm in arms} == {"READY"}
    assert "READY" in specmesh("drafts", "--address", address).stdout


def test_bench_reports_its_load(address: str) -> None:
    load = ("--requests", "6", "--concurrency", "3", "--max-tokens", "8", "--tokens", "1,2,3")
    report = json.loads(specmesh("bench", "--address", address, *load, "--json").stdout)
    assert report["output_tokens"] == 48
    assert report["failures"] == {}
    assert report["ms_to_first_token"]["p50"] > 0


async def test_a_load_tells_how_far_it_is(address: str) -> None:
    told: list[str] = []
    report = await run_load(
        lambda: AsyncClient(address), requests=60, concurrency=2, prompts=[[1, 2, 3]],
        options={"max_output_tokens": 16}, on_progress=told.append, progress_seconds=0.001,
    )  # fmt: skip
    assert report["output_tokens"] == 960
    assert len(told) > 1
    assert all(re.fullmatch(r"[0-9]+ of 60 requests, [0-9]+ tokens, [0-9]+ s", line) for line in told), told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--top-p", "1.5"), ["INVALID_VALUE", "sampling.top_p"]),
        (("--seed", "1", "--rule", "BLOCK"), ["INVALID_ARGUMENT", "rule"]),
        (("--drafts", "nobody"), ["draft.arms", "specmesh drafts"]),
        (("--model", "nobody"), ["UNKNOWN_MODEL", "specmesh models"]),
    ],
)
def test_a_refused_request_says_why_and_what_next(address: str, arguments: tuple[str, ...], words: list[str]) -> None:
    done = specmesh(*GENERATE, address, *arguments, status=1)
    said = done.stderr
    assert done.stdout == ""
    assert all(word in said for word in words), said
    assert "Traceback" not in said


def test_with_json_a_failure_is_an_object_too(address: str) -> None:
    """On standard output, where the answer would have been; words for people and the exit status stay."""
    done = specmesh(*GENERATE, address, "--top-p", "1.5", "--json", status=1)
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["reason"], error["field"]) == ("INVALID_ARGUMENT", "INVALID_VALUE", "sampling.top_p")
    assert error["message"].startswith("sampling.top_p: ")
    assert (error["retry_after"], error["partial"]) == (None, None)
    assert "sampling.top_p" in done.stderr
    for command in ("drafts", "models"):
        error = json.loads(specmesh(command, "--address", "127.0.0.1:1", "--json", status=1).stdout)["error"]
        assert (error["code"], error["field"]) == ("UNAVAILABLE", None)


def test_token_ids_that_end_a_text_biases_and_priority_reach_the_router(address: str) -> None:
    options = ("--temperature", "0", "--json", "--steps")
    plain = json.loads(specmesh(*GENERATE, address, *options).stdout)["token_ids"]
    stop = next(token for token in range(VOCABULARY) if token in plain)
    ended = json.loads(specmesh(*GENERATE, address, *options, "--stop-token-ids", f"{stop},{stop}").stdout)
    assert ended["token_ids"] == plain[: plain.index(stop) + 1]
    assert ended["finish_reason"] == "STOP"
    biased = json.loads(specmesh(*GENERATE, address, *options, "--logit-bias", f"{stop}=1000").stdout)
    assert biased["token_ids"] == [stop] * 24
    assert "priority" in specmesh(*GENERATE, address, *options, "--priority", "11", status=1).stderr


def test_without_a_router_the_next_step_is_named() -> None:
    said = specmesh(*GENERATE, "127.0.0.1:1", "--timeout", "5", status=1).stderr
    assert "UNAVAILABLE" in said
    assert "specmesh up" in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("generate",), ["PROMPT", "--file", "--tokens"]),
        (("generate", "x", "--system", "y"), ["--system", "--chat"]),
        (("generate", "--tokens", "1,a"), ["--tokens"]),
        (("generate", "x", "--tokens", "1"), ["PROMPT", "--tokens"]),
        (("generate", "--file", __file__, "--tokens", "1"), ["--file", "--tokens"]),
        (("generate", "x", "--file", __file__), ["PROMPT", "--file"]),
        (("generate", "--tokens", "1", "--chat"), ["--tokens", "--chat"]),
        (("generate", "--tokens", "1", "--system", "y"), ["--system", "--chat"]),
        (("bench", "--file", __file__, "--tokens", "1"), ["--file", "--tokens"]),
        (("bench", "--file", os.devnull), ["--file", "no prompt"]),
        (("drafts", "--interval", "2"), ["--interval", "--watch"]),
        (("drafts", "--tls-key", "x"), ["--tls-key"]),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: tuple[str, ...], named: list[str]) -> None:
    said = CliRunner().invoke(main, [*arguments], env={"COLUMNS": "200"})
    assert said.exit_code == 2
    assert "Usage" in said.stderr
    problem = said.stderr[said.stderr.index("Error:") :]
    assert all(name in problem for name in named), problem


def test_a_system_message_is_sent_even_when_it_is_empty() -> None:
    assert prompt_of("x", None, None, chat=True, system="") == [("system", ""), ("user", "x")]
    assert prompt_of("x", None, None, chat=True, system=None) == [("user", "x")]
    assert prompt_of("", None, None, chat=False, system=None) == ""
    assert prompt_of(None, None, "1,2", chat=False, system=None) == [1, 2]


def services_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_mesh_and_leaves_no_process(mesh_file: Path, number: signal.Signals) -> None:
    with start(mesh_file) as process:
        wait_ready(process)
        services = services_of(process)
        process.send_signal(number)
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert len(services) >= 4
    assert psutil.wait_procs(services, 0)[1] == []


def test_a_dead_service_ends_the_mesh_which_says_which_and_why(mesh_file: Path) -> None:
    with start(mesh_file) as process:
        wait_ready(process)
        services = services_of(process)
        next(service for service in services if "specmesh.verifier" in service.cmdline()).kill()
        _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "verifier was ended by signal 9" in said
    assert psutil.wait_procs(services, 5)[1] == []


def test_a_dead_draft_is_said_and_the_mesh_goes_on(mesh_file: Path) -> None:
    with start(mesh_file) as process:
        address = wait_ready(process)
        drafts = [service for service in services_of(process) if "specmesh.draft" in service.cmdline()]
        drafts[0].kill()
        assert process.stderr is not None
        assert any("was ended by signal 9" in line for line in process.stderr)
        answer = json.loads(specmesh(*GENERATE, address, "--json").stdout)
        process.terminate()
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert answer["usage"]["output_tokens"] == 24


def test_a_draft_that_dies_while_it_loads_is_said_once_and_the_mesh_goes_on(mesh_file: Path) -> None:
    """Its pool stays, without a replica, so that what names the pool means something."""
    with start(mesh_file) as process:
        assert process.stderr is not None
        assert any(line.startswith("draft other: starting") for line in process.stderr)
        drafts = [service for service in services_of(process) if "specmesh.draft" in service.cmdline()]
        drafts[0].kill()
        said: list[str] = []
        address = wait_ready(process, said)
        answer = json.loads(specmesh(*GENERATE, address, "--json").stdout)
        arms = json.loads(specmesh("drafts", "--address", address, "--json").stdout)
        process.terminate()
        said.append(process.communicate(timeout=20)[1])
        assert process.returncode == 0
    assert answer["usage"]["output_tokens"] == 24
    states = {arm["arm"].partition("@")[0]: arm["state"] for arm in arms}
    assert sorted(states) == ["lookup", "other"]
    assert sorted(states.values()) == ["COOLING", "READY"]
    assert "".join(said).count("was ended by signal 9") == 1


def test_a_verifier_that_dies_while_it_loads_ends_the_mesh(mesh_file: Path) -> None:
    with start(mesh_file) as process:
        assert process.stderr is not None
        assert any(line.startswith("verifier: starting") for line in process.stderr)
        services_of(process)[0].kill()
        _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "verifier was ended by signal 9" in said


def test_a_mesh_is_printed_and_not_started(mesh_file: Path, tmp_path: Path) -> None:
    options = ("up", "--port", "7", "--dtype", "float32", "--print-config")
    printed = specmesh(*options, "--config", str(mesh_file)).stdout
    assert tomllib.loads(printed)["router"]["server"]["port"] == 7
    assert tomllib.loads(printed)["verifier"]["dtype"] == "float32"
    demo = tomllib.loads(specmesh(*options).stdout)
    assert demo["verifier"] == {"model": "demo", "dtype": "float32"}
    assert [draft["pool"] for draft in demo["drafts"]] == ["code-table", "prose-table", "code", "prose", "general"]


def test_a_file_that_is_not_text_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes([0xC9, 0x80, 0xFF]))
    assert "UTF-8" in specmesh("generate", "--file", str(path), status=2).stderr


def test_a_killed_parent_takes_its_services_along(mesh_file: Path) -> None:
    with start(mesh_file) as process:
        wait_ready(process)
        services = services_of(process)
        process.kill()
    assert psutil.wait_procs(services, 15)[1] == []


def test_a_service_that_cannot_start_is_named_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "mesh.toml"
    broken = tmp_path / "broken.npz"
    broken.write_text("no arrays")
    path.write_text(f'[verifier]\nmodel = "table:{broken}"\n')
    with start(path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "verifier ended with status 2" in said
    assert "cannot load the table" in said


def test_mistakes_of_all_sections_are_told_together_before_anything_is_started(tmp_path: Path) -> None:
    path = tmp_path / "mesh.toml"
    path.write_text('[verifier]\nmodel = "table:absent.npz"\n[router]\npolicy = { name = "greedy" }\n')
    said = specmesh("up", "--config", str(path), status=1).stderr.splitlines()
    assert said == [
        "specmesh: 2 mistakes in the configuration; nothing was started:",
        f"  verifier.model: cannot load the table: absent.npz: no such file (from {path})",
        f'  router.policy.name: there is no policy "greedy": fixed, goodput, thompson, ucb1 (from {path})',
    ]


def test_a_port_in_use_is_told_before_anything_is_started(mesh_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = specmesh("up", "--config", str(mesh_file), "--port", port, status=1).stderr
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "starting" not in said


@pytest.mark.parametrize("name", ["verifier", "draft", "router"])
def test_a_service_runs_by_its_own_command(name: str) -> None:
    said = specmesh(name, "--set", "nobody=1", status=2).stderr
    assert said.startswith(f"specmesh {name}: ")
    assert "nobody: no such key" in said

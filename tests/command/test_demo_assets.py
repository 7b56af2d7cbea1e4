"""The step of preparation that is a process of its own: what it says, what it gives, and when it ends."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from specmesh.command.demo_assets import output_of
from specmesh.runtime.config import ConfigError

PARENT = """
import sys
from rich.console import Console
from specmesh.command.demo_assets import output_of
from specmesh.command.up import end_on_sigterm
end_on_sigterm()
print(len(output_of("prepared", Console(file=sys.stderr))))
"""


def parent(folder: Path, prepared: str) -> subprocess.Popen[str]:
    """A process that waits for a module `prepared`, of this text."""
    (folder / "prepared.py").write_text(prepared)
    pipe = subprocess.PIPE
    environ = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.Popen([sys.executable, "-c", PARENT], stdout=pipe, stderr=pipe, text=True, env=environ)


def until_said(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    assert any(words in line for line in process.stderr)


def test_much_output_before_all_was_said_holds_nothing_up(tmp_path: Path) -> None:
    text = "import sys\nprint('x' * 1_000_000, flush=True)\nprint('said', file=sys.stderr)"
    with parent(tmp_path, text) as process:
        try:
            output, said = process.communicate(timeout=30)
        finally:
            for each in (*psutil.Process(process.pid).children(), process) if process.poll() is None else ():
                each.kill()
    assert output == "1000001\n"
    assert "said\n" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    text = "import sys, time\nprint('begun', file=sys.stderr, flush=True)\ntime.sleep(600)"
    with parent(tmp_path, text) as process:
        until_said(process, "begun")
        children = psutil.Process(process.pid).children()
        process.send_signal(number)
        try:
            process.wait(timeout=30)
            assert psutil.wait_procs(children, 5)[1] == []
        finally:
            for child in children:
                if child.is_running():
                    child.kill()
    assert len(children) == 1


def test_one_that_fails_says_so() -> None:
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(ConfigError, match=r"^specmesh\.absent failed; the message above says why"):
        output_of("specmesh.absent", console)
    assert "No module named specmesh.absent" in console.file.getvalue()  # type: ignore[attr-defined]

"""What a person sees of parts that take their time, at a terminal and in a file."""

import io
import re
import runpy
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from specmesh.command.views import PlainView
from specmesh.command.working import working

ENVIRONMENT = Path(__file__).resolve().parents[2] / "packaging" / "environment.py"
NEVER = 3600.0
"""Seconds to what is not awaited."""


def written(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def until_said(console: Console, pattern: str) -> None:
    """Waits for what another thread writes."""
    end = time.monotonic() + 10
    while not re.search(pattern, written(console)):
        assert time.monotonic() < end, written(console)
        time.sleep(0.01)


def assert_nobody_says_more() -> None:
    """What is said at intervals is said by a thread of this name."""
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_in_a_file_a_part_is_a_line_and_one_more_at_intervals() -> None:
    console = Console(file=io.StringIO(), width=120)
    with working(console, "warming up", seconds=0.05):
        until_said(console, r"^warming up\nwarming up: [0-9]+ s\n")
    assert_nobody_says_more()
    assert all(re.fullmatch(r"warming up: [0-9]+ s", line) for line in written(console).splitlines()[1:])


def test_at_a_terminal_it_is_a_line_that_leaves_no_trace() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with working(console, "warming up", seconds=NEVER):
        until_said(console, "warming up.*0:00:[0-9]{2}")
    assert written(console).endswith("\x1b[2K")


def test_it_may_be_over_before_its_block_is() -> None:
    console = Console(file=io.StringIO(), width=120)
    with working(console, "waiting", seconds=NEVER) as over:
        over()
        assert_nobody_says_more()
        over()
    assert written(console) == "waiting\n"


def test_a_start_that_takes_its_time_says_at_intervals_for_what_it_waits() -> None:
    console = Console(file=io.StringIO(), width=120)
    view = PlainView(console, show_log=False, seconds=0.05)
    for name in ("verifier", "draft code", "draft prose"):
        view.starting(name)
    view.line("verifier", "recording forwards: 40 of 102")
    view.ready("draft code", "h:1")
    view.missed("draft prose", "it ended")
    until_said(console, r"waiting after [0-9]+ s for verifier \(recording forwards: 40 of 102\)\n")
    view.close()
    assert_nobody_says_more()
    assert "draft code (" not in written(console)


def test_the_install_says_at_intervals_that_it_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = runpy.run_path(str(ENVIRONMENT))["run"]
    end = tmp_path / "end"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(end)!r}).exists(): time.sleep(0.01)"
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(run, sys.executable, "-c", waits, doing="installing", said_every_seconds=0.05)
        said, began = "", time.monotonic()
        while not re.search(r"==> installing: [0-9]+ s\n", said) and time.monotonic() < began + 10:
            said += capfd.readouterr().err
            time.sleep(0.01)
        end.touch()
        assert status.result() == 0
    assert re.search(r"==> installing: [0-9]+ s\n", said)
    capfd.readouterr()
    assert run(sys.executable, "-c", "import sys; print('x'); sys.exit(3)", quiet=True, doing="asking") == 3
    assert capfd.readouterr() == ("", "")

"""What a person sees of parts that take their time, at a terminal and in a file."""

import io
import re
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from specmesh.command.views import PlainView
from specmesh.command.working import working

ENVIRONMENT = Path(__file__).resolve().parents[2] / "packaging" / "environment.py"


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


def test_in_a_file_a_part_is_a_line_and_one_more_at_intervals() -> None:
    console = Console(file=io.StringIO(), width=120)
    with working(console, "warming up", seconds=0.05):
        assert written(console) == "warming up\n"
        until_said(console, r"warming up: [0-9]+ s\n")
    lines = written(console).splitlines()
    assert all(re.fullmatch(r"warming up(: [0-9]+ s)?", line) for line in lines)
    time.sleep(0.2)
    assert written(console).splitlines() == lines


def test_at_a_terminal_it_is_a_line_that_leaves_no_trace() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with working(console, "warming up", seconds=0.05):
        until_said(console, "warming up.*0:00:00")
    assert written(console).endswith("\x1b[2K")


def test_it_may_be_over_before_its_block_is() -> None:
    console = Console(file=io.StringIO(), width=120)
    with working(console, "waiting", seconds=0.05) as over:
        over()
        before = written(console)
        time.sleep(0.2)
        over()
        assert written(console) == before == "waiting\n"


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
    said = written(console)
    assert "draft code (" not in said
    time.sleep(0.2)
    assert written(console) == said


@pytest.fixture
def run() -> Callable[..., int]:
    script = runpy.run_path(str(ENVIRONMENT))
    script["run"].__globals__["SAID_EVERY_SECONDS"] = 0.2
    return script["run"]  # type: ignore[no-any-return]


def test_the_install_says_at_intervals_that_it_goes_on(
    run: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(sys.executable, "-c", "import time; time.sleep(1); print('x')", doing="installing") == 0
    assert re.search(r"==> installing: [0-9]+ s\n", capfd.readouterr().err)
    assert run(sys.executable, "-c", "import sys; sys.exit(3)", quiet=True, doing="asking") == 3
    assert capfd.readouterr() == ("", "")

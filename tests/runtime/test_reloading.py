"""Values of files that change, seen by a clock that the test moves."""

import os
from pathlib import Path

import pytest
from still_clock import StillClock

from specmesh.runtime.reloading import RECHECK_SECONDS, Reloaded


def test_a_change_is_seen_after_the_interval_and_not_looked_for_before(tmp_path: Path) -> None:
    path, clock = tmp_path / "value", StillClock()
    path.write_text("old")
    value = Reloaded([path], path.read_text, clock=clock)
    path.write_text("other")
    assert value.value == "old"
    clock.pass_seconds(RECHECK_SECONDS)
    assert value.value == "other"


def test_a_link_that_is_switched_is_a_change(tmp_path: Path) -> None:
    """A mounted secret: `..data` is a link to a folder, and a new version switches the link."""
    clock, data = StillClock(), tmp_path / "..data"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
        os.utime(tmp_path / name / "token", (1, 1))
    data.symlink_to("one")
    path = data / "token"
    value = Reloaded([path], path.read_text, clock=clock)
    (tmp_path / "new").symlink_to("two")
    os.replace(tmp_path / "new", data)
    clock.pass_seconds(RECHECK_SECONDS)
    assert value.value == "two"


def test_what_cannot_be_read_leaves_the_last_good_value_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "value", StillClock()
    path.write_text("good")
    value = Reloaded([path], path.read_text, clock=clock)
    path.unlink()
    for _ in range(3):
        clock.pass_seconds(RECHECK_SECONDS)
        assert value.value == "good"
    assert len(caplog.records) == 1
    path.write_text("back")
    clock.pass_seconds(RECHECK_SECONDS)
    assert value.value == "back"


def test_the_first_reading_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Reloaded([tmp_path / "absent"], (tmp_path / "absent").read_text)

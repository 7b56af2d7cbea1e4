"""`specmesh drafts --watch`: a table of the arms that follows them until Ctrl-C."""

import io
import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from rich.console import Console

from specmesh.client import NotAllowed, SpecMeshError, Unavailable
from specmesh.command.drafts import show_drafts
from specmesh.v1 import router_service_pb2 as pb

READY, COOLING = pb.ARM_STATE_READY, pb.ARM_STATE_COOLING


class Arms:
    """A router's arms, another answer each time; when there are no more, it is as if Ctrl-C had come."""

    def __init__(self, *answers: list[pb.DraftArm] | SpecMeshError) -> None:
        self._answers = list(answers)
        self.models: list[str] = []

    async def __aenter__(self) -> "Arms":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return

    async def list_drafts(self, model: str) -> list[pb.DraftArm]:
        self.models.append(model)
        if not self._answers:
            raise KeyboardInterrupt
        answer = self._answers.pop(0)
        if isinstance(answer, SpecMeshError):
            raise answer
        return answer


def arm(state: Any, **fields: Any) -> pb.DraftArm:
    return pb.DraftArm(name="code@12345678", state=state, ready_replica_count=2, acceptance=0.625, **fields)


def connect_to(arms: Arms) -> Callable[[], Any]:
    return lambda: arms


async def test_watching_shows_each_state_as_it_comes() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=140)
    arms = Arms([arm(READY)], [arm(COOLING, reason="the probe was not answered in time")])
    with pytest.raises(KeyboardInterrupt):
        await show_drafts(connect_to(arms), console, model="m", as_json=False, interval=0.001)
    assert arms.models[1:] == ["m"] * (len(arms.models) - 1)
    said = out.getvalue()
    assert said.count("READY") == 1
    assert said.index("READY") < said.index("COOLING")
    assert "the probe was not answered in time" in said
    assert "62%" in said


GONE = Unavailable(grpc.StatusCode.UNAVAILABLE, "nobody [listens]")


@pytest.mark.parametrize("terminal", [True, False])
async def test_a_poll_that_fails_is_said_and_the_next_one_is_shown(terminal: bool) -> None:
    out = io.StringIO()
    arms = Arms([arm(READY)], GONE, [arm(COOLING, reason="late")])
    console = Console(file=out, force_terminal=terminal, width=140)
    with pytest.raises(KeyboardInterrupt):
        await show_drafts(connect_to(arms), console, model="", as_json=False, interval=0.001)
    said = out.getvalue()
    assert said.index("READY") < said.index("nobody [listens]") < said.index("COOLING")


async def test_a_pipe_gets_a_table_each_time() -> None:
    out = io.StringIO()
    arms = Arms([arm(READY)], [arm(READY)], [arm(READY)])
    with pytest.raises(KeyboardInterrupt):
        await show_drafts(connect_to(arms), Console(file=out, width=140), model="", as_json=False, interval=0.001)
    assert out.getvalue().count("READY") == 3


async def test_what_no_later_poll_would_change_ends_the_watch() -> None:
    refused = NotAllowed(grpc.StatusCode.PERMISSION_DENIED, "needs the role operator")
    for answers in ([GONE], [refused], [[arm(READY)], refused]):
        with pytest.raises(SpecMeshError):
            await show_drafts(
                connect_to(Arms(*answers)), Console(file=io.StringIO()), model="", as_json=False, interval=0.001
            )


async def test_once_is_once() -> None:
    out = io.StringIO()
    arms = Arms([arm(READY)])
    await show_drafts(connect_to(arms), Console(file=out, width=140), model="", as_json=False, interval=None)
    assert "code@12345678" in out.getvalue()
    arms = Arms([arm(COOLING, reason="late")])
    out = io.StringIO()
    await show_drafts(connect_to(arms), Console(file=out, width=140), model="", as_json=True, interval=None)
    [shown] = json.loads(out.getvalue())
    assert (shown["arm"], shown["state"], shown["reason"]) == ("code@12345678", "COOLING", "late")

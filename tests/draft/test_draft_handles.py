"""Handles of blocks on a stream: short, unique among the blocks in flight, and never lost."""

import numpy as np
from draft_peers import ask_for

from specmesh.draft.block import Ended, Event, Tokens
from specmesh.draft.drafter import Proposal
from specmesh.draft.stream import RouterStream
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import encode_row
from specmesh.runtime.types import ContextSource, DraftEndReason
from specmesh.v1 import draft_service_pb2 as pb

ROW = encode_row(np.array([3]), np.array([ROW_TOTAL]))
END = Ended(1, DraftEndReason.LENGTH, ContextSource.WARM, 0, 0, 1)


class Told:
    """A stream and what was told on it."""

    def __init__(self) -> None:
        self.stream = RouterStream()

    async def take(self) -> list[pb.DraftResponseEntry]:
        return await self.stream.next_frame()

    def token(self, session_id: int, offset: int = 0, row: bytes | None = ROW) -> None:
        self._tell(session_id, Tokens(offset, (Proposal(3, row, 0.0),)))

    def end(self, session_id: int) -> None:
        self._tell(session_id, END)

    def _tell(self, session_id: int, what: Tokens | Ended) -> None:
        ask = ask_for([1, 2], 2, 4, session_id=session_id)
        self.stream.receive(Event(self.stream, ask, what))


async def test_the_first_entry_names_the_session_and_the_others_the_handle() -> None:
    told = Told()
    told.stream.owe(9)
    told.token(9)
    told.token(9, 1)
    told.end(9)
    first, second, end = await told.take()
    assert (first.session_id, first.position, first.handle, first.token_id, first.row) == (9, 2, 1, 3, ROW)
    assert (second.session_id, second.position, second.handle, second.token_id, second.row) == (0, 0, 1, 3, ROW)
    assert (end.session_id, end.handle, end.WhichOneof("event")) == (0, 1, "end")


async def test_tokens_without_rows_keep_what_no_row_tells() -> None:
    told = Told()
    told.stream.owe(9)
    told.token(9, row=None)
    told.token(9, 1, row=None)
    first, second = await told.take()
    assert [each.WhichOneof("event") for each in (first, second)] == ["tokens", "tokens"]
    assert (second.session_id, second.handle, second.tokens.offset) == (0, 1, 1)
    assert len(second.tokens.draft_logprobs) == 1


async def test_an_end_without_tokens_names_its_session() -> None:
    told = Told()
    told.stream.owe(9)
    told.end(9)
    (end,) = await told.take()
    assert (end.session_id, end.position, end.handle) == (9, 2, 0)


async def test_handles_are_used_again_and_closed_sessions_leave_none_behind() -> None:
    told = Told()
    for session_id in range(1, 4):
        told.stream.owe(session_id)
        told.token(session_id)
    told.stream.forgive(2)
    told.token(2, 1)  # was on its way from the engine
    told.end(2)
    told.end(1)
    for session_id in range(10, 12):
        told.stream.owe(session_id)
        told.token(session_id)
    entries = await told.take()
    begun = {entry.session_id: entry.handle for entry in entries if entry.row and entry.position}
    assert begun == {1: 1, 2: 2, 3: 3, 10: 1, 11: 2}
    late = [entry.WhichOneof("event") for entry in entries if entry.session_id == 2 and not entry.handle]
    assert late == ["tokens", "end"], "of a closed session, and without a handle"

"""Short names for blocks on one stream: what follows the first message of a block names it in one byte or two.

A token that travels alone then costs 12 bytes besides its row of 128 ids, where session, position, offset and
logarithm would cost 34.
"""

from heapq import heappop, heappush

from specmesh.draft.block import Event, Tokens
from specmesh.v1 import draft_service_pb2 as pb


class Handles:
    """Those in use on one stream; a session has one block at a time."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._free: list[int] = []

    def shorten(self, entry: pb.DraftResponseEntry, event: Event) -> None:
        """Give the first tokens of a block a handle; put it in the place of session and position in all that follows.

        A single token with a row needs no more than the two: its offset is the next one, its probability in the row.
        """
        session_id, what = entry.session_id, event.what
        handle = self._of.get(session_id)
        if handle is not None:
            entry.handle = handle
            entry.ClearField("session_id")
            entry.ClearField("position")
        if not isinstance(what, Tokens):
            self.release(session_id)
            return
        if handle is None:
            entry.handle = self._of[session_id] = heappop(self._free) if self._free else len(self._of) + 1
        if len(what.proposals) == 1 and (row := what.proposals[0].row) is not None:
            entry.token_id, entry.row = what.proposals[0].token_id, row
            entry.ClearField("tokens")

    def release(self, session_id: int) -> None:
        """The session's block has ended, or nobody waits for it any more."""
        handle = self._of.pop(session_id, None)
        if handle is not None:
            heappush(self._free, handle)

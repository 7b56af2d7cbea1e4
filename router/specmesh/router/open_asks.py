"""The asks of one replica that wait for an answer, and which of them an entry of its stream belongs to."""

from specmesh.router.ask import Ask, Ending
from specmesh.v1 import draft_service_pb2 as pb


class OpenAsks:
    """By session, one at a time; and by the handle that the replica has given to a block it has begun."""

    def __init__(self) -> None:
        self._by_session: dict[int, Ask] = {}
        self._by_handle: dict[int, Ask | None] = {}

    def add(self, ask: Ask) -> None:
        """It waits from now on, in place of an earlier one of its session."""
        self._by_session[ask.source.session_id] = ask

    def remove(self, ask: Ask) -> None:
        """It waits no more; the session's next one may have taken its place already."""
        if self._by_session.get(ask.source.session_id) is ask:
            del self._by_session[ask.source.session_id]

    def fail(self) -> None:
        """The connection is gone, and with it every answer and every handle."""
        self._by_handle.clear()
        for ask in self._by_session.values():
            ask.finish(Ending.FAILED)

    def of(self, entry: pb.DraftResponseEntry) -> Ask | None:
        """The ask that this answers; None when nobody waits for it.

        Answers to an earlier position come from blocks that were cut: what is in them was never drafted.
        """
        if entry.handle and not entry.position:
            ask = self._by_handle.get(entry.handle)
            return None if ask is None or ask.done.done() else ask
        ask = self._by_session.get(entry.session_id)
        if ask is not None and entry.position != ask.block.position:
            ask = None
        if entry.handle:
            self._by_handle[entry.handle] = ask
        return ask

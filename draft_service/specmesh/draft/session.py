"""Contexts by session: soft state, bounded, least recently used first to go."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence

from specmesh.runtime.context import ContextHasher


class Session:
    """One session's tokens: the verified context, then what has been drafted on top of it."""

    __slots__ = ("_counts", "_hasher", "charged_bytes", "fresh", "session_id", "tokens")

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self.tokens = array("I")
        self.fresh = True
        self.charged_bytes = 0
        self._hasher = ContextHasher()
        self._counts: Counter[int] | None = None

    @property
    def position(self) -> int:
        """Length of the verified context."""
        return self._hasher.length

    def catch_up(self, position: int, delta: Sequence[int], context_hash: int) -> tuple[bool, int]:
        """Make the verified context end at `position` with `delta`.

        Returns whether its hash is `context_hash`, and how many tokens at the front did not change (what was drafted
        and then kept counts). A context that does not match is worthless afterwards. `position - len(delta)` must be
        in [0, self.position].
        """
        base = position - len(delta)
        if base < self.position:
            self._hasher = ContextHasher(self.tokens[:base])
        self._hasher.extend(delta)
        kept = base
        for token, ours in zip(delta, self.tokens[base:position], strict=False):
            if token != ours:
                break
            kept += 1
        self.truncate(kept)
        self.extend(delta[kept - base :])
        return self._hasher.value() == context_hash, kept

    def replace(self, start: int, token_ids: Sequence[int]) -> int:
        """Make the verified context its first `start` tokens and `token_ids`; returns how many did not change."""
        self._hasher = ContextHasher(self.tokens[:start])
        self._hasher.extend(token_ids)
        self.truncate(start)
        self.extend(token_ids)
        return start

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens, verified or drafted."""
        start = len(self.tokens)
        self.tokens.extend(token_ids)
        if self._counts is not None:
            self._counts.update(self.tokens[start:])

    def truncate(self, length: int) -> None:
        """Drop tokens beyond `length`."""
        if self._counts is not None:
            self._counts.subtract(self.tokens[length:])
        del self.tokens[length:]

    def counts(self) -> Counter[int]:
        """How often each token is in `tokens`; kept from the first call on."""
        if self._counts is None:
            self._counts = Counter(self.tokens)
        return self._counts


class SessionStore:
    """Sessions by id, at most `max_sessions` and `max_bytes`; the least recently used ones that are idle go first."""

    def __init__(
        self, *, max_sessions: int, max_bytes: int, bytes_per_token: int, forgotten: Callable[[int], None]
    ) -> None:
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._bytes_per_token = bytes_per_token
        self._forgotten = forgotten
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> Session | None:
        """The session, now the most recently used one."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._sessions.move_to_end(session_id)
        return session

    def create(self, session_id: int) -> Session:
        """A new, empty session."""
        session = self._sessions[session_id] = Session(session_id)
        return session

    def settle(self, session: Session, busy: Collection[int]) -> None:
        """Account for what `session` holds now and forget idle sessions until all fits."""
        held = len(session.tokens) * self._bytes_per_token
        self.held_bytes += held - session.charged_bytes
        session.charged_bytes = held
        if len(self._sessions) <= self._max_sessions and self.held_bytes <= self._max_bytes:
            return
        for session_id in list(self._sessions):
            if session_id != session.session_id and session_id not in busy:
                self.forget(session_id)
                if len(self._sessions) <= self._max_sessions and self.held_bytes <= self._max_bytes:
                    return

    def forget(self, session_id: int) -> None:
        """Drop a session; unknown ones are fine."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.held_bytes -= session.charged_bytes
            self._forgotten(session_id)

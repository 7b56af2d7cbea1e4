"""Which sessions hold cache memory, who gets it next, and who gives it up when there is too little. Pure.

A session is admitted with room for its context and a little more, and grows as it goes. When a block is missing, what
others hold beyond their contexts goes first; then the session of the lowest rank (priority, then who came last) gives
all its memory up and waits to be taken in again, when it computes its context anew. The session of the highest rank
never gives way, and alone it always fits: so somebody always gets on, and everybody is that somebody in the end.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specmesh.verifier.admission import AdmissionQueue, Opening
from specmesh.verifier.backend import Backend, Work
from specmesh.verifier.session import Rank, Session, SessionKey

HEADROOM_TOKENS = 32
"""Room beyond its context with which a session is admitted."""


class Admitted(NamedTuple):
    """A session that holds memory now, `session.cached` tokens of its context in it; None: it was open before."""

    session: Session
    opening: Opening | None


class Memory:
    """Keeps the engine's sessions and the backend's blocks in step."""

    def __init__(self, backend: Backend, max_waiting: int, max_sessions: int | None = None) -> None:
        self._max_sessions = max_sessions
        self.waiting = AdmissionQueue(max_waiting)
        self._backend = backend
        self._seated: dict[SessionKey, Session] = {}

    def admit_next(self, now_ns: int) -> Admitted | None:
        """Take the next one out of the queue and give it memory; None: nobody waits, or there is too little."""
        first = self.waiting.first()
        if first is None:
            return None
        rank, item = first
        if isinstance(item, Opening) and self._is_full:
            return None
        session = self._session_of(item, rank, now_ns) if isinstance(item, Opening) else item
        num_ahead = max(HEADROOM_TOKENS, 0 if session.entry is None else 1 + len(session.entry.token_ids))
        num_tokens = min(session.limit, session.position + num_ahead)
        num_cached = self._backend.open(session.key, session.spec.cache_salt, session.context, num_tokens)
        if num_cached is None:
            return None
        self.waiting.remove(item)
        session.cached, session.held, session.seated = num_cached, num_tokens, True
        session.shareable_at = num_cached
        self._seated[session.key] = session
        return Admitted(session, item if isinstance(item, Opening) else None)

    @property
    def _is_full(self) -> bool:
        """Whether as many are open as may be, those that have lost their memory among them."""
        num_open = len(self._seated) + self.waiting.num_put_back
        return self._max_sessions is not None and num_open >= self._max_sessions

    def _session_of(self, opening: Opening, rank: Rank, now_ns: int) -> Session:
        return Session(
            opening.spec,
            max_context_tokens=self._backend.max_context_tokens,
            now_ns=now_ns,
            deadline_ns=opening.deadline_ns,
            rank=rank,
        )

    def make_room(self, batch: Sequence[Work]) -> tuple[Sequence[Work], list[Session]]:
        """Memory for all that a tick writes: the work that is done in it, and who has lost its memory."""
        if all(work.start + len(work.token_ids) <= work.session.held or self._grow(work) for work in batch):
            return batch, []
        for session in self._seated.values():
            self._backend.trim(session.key, session.position)
            session.held = min(session.held, session.position)
        preempted: list[Session] = []
        for work in sorted(batch, key=lambda work: work.session.rank):
            while work.session.seated and not self._grow(work):
                last = max(self._seated.values(), key=lambda session: session.rank)
                self._preempt(last)
                preempted.append(last)
        return [work for work in batch if work.session.seated], preempted

    def _grow(self, work: Work) -> bool:
        session, num_tokens = work.session, work.start + len(work.token_ids)
        session.held = self._backend.grow(session.key, num_tokens)
        return num_tokens <= session.held

    def share(self, session: Session) -> None:
        """Let others share what of the session's context is final and in the cache."""
        session.shareable_at = self._backend.commit(session.key, session.context, session.cached)

    def _preempt(self, session: Session) -> None:
        del self._seated[session.key]
        self._backend.close(session.key)
        session.cached, session.held, session.seated = 0, 0, False
        self.waiting.put_back(session)

    def leave(self, session: Session, *, forget: bool = False) -> None:
        """The session has ended: it holds nothing and waits for nothing. `forget`: its content must not be shared."""
        session.seated = False
        if self._seated.pop(session.key, None) is None:
            self.waiting.remove(session)
        else:
            self._backend.close(session.key, forget=forget)

"""All that the engine decides, on one thread and without one: sessions, admission, leases, ticks.

Time comes from `clock`, computing from the backend, and what is to be told to the event loop collects in `outbox`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specmesh.kernels.inputs import VerifyOutcome
from specmesh.runtime.errors import Draining, MeshError, Overloaded
from specmesh.runtime.types import EntryErrorReason, EntryFailure
from specmesh.verifier.admission import AdmissionQueue, Opening
from specmesh.verifier.backend import Backend, Verified
from specmesh.verifier.batcher import Share, TickLimits, plan
from specmesh.verifier.entries import EntryLimits, following, problem_with
from specmesh.verifier.gather import Gather
from specmesh.verifier.session import NEVER_NS, Answer, AnswerStream, Entry, Session, SessionKey, context_limit
from specmesh.verifier.step import result_of, timing_of, work_of

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outbox:
    """What a pass of the engine has to say: answers by stream, and openings that are settled."""

    answers: dict[AnswerStream, list[Answer]] = field(default_factory=dict)
    settled: list[tuple[Opening, MeshError | None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.answers or self.settled)


class Core:
    """State of the engine. One thread at a time."""

    def __init__(
        self,
        backend: Backend,
        *,
        limits: TickLimits,
        entry_limits: EntryLimits,
        max_waiting_sessions: int,
        clock: Callable[[], int],
    ) -> None:
        self.sessions: dict[SessionKey, Session] = {}
        self.waiting = AdmissionQueue(max_waiting_sessions)
        self.counters: Counter[str] = Counter()
        self.outbox = Outbox()
        self.draining = False
        self._backend = backend
        self._limits = limits
        self._entry_limits = entry_limits
        self._clock = clock
        self._gather = Gather()
        self._pending: dict[SessionKey, Session] = {}
        self._prefilling: dict[SessionKey, Session] = {}
        self._next_sweep_ns = NEVER_NS

    # What peers ask for.

    def open(self, opening: Opening) -> None:
        """Admit a session, or queue it. An open session of the same peer and id is replaced."""
        self.close(opening.key)
        if self.draining:
            self.outbox.settled.append((opening, Draining("this verifier is draining and takes no new sessions")))
            return
        self._sweep_by(opening.deadline_ns)
        self.waiting.add(opening)
        self._admit()
        if (error := self.waiting.refuse_excess(opening)) is not None:
            self.outbox.settled.append((opening, error))

    def submit(self, session: Session, entry: Entry) -> None:
        """Take a block to verify, now or after an outcome; what is wrong is answered, and changes nothing."""
        if self.sessions.get(session.key) is not session:
            self._fail_entry(session, entry, EntryErrorReason.UNKNOWN_SESSION, "the session is not open here")
            return
        if (problem := problem_with(session, entry, self._entry_limits)) is not None:
            self._fail_entry(session, entry, *problem)
            return
        session.touch(self._clock())
        if entry.after is not None and entry.after.position == session.position:
            session.conditional[entry.after] = entry
        elif entry.after is None or entry.after == session.last_outcome:
            self.counters["conditional_taken"] += entry.after is not None
            self._start(session, entry)
            self._gather.returned(session.key, entry.arrived_ns)
        else:
            self.counters["conditional_dropped"] += 1

    def close(self, key: SessionKey) -> None:
        """End a session, or take its opening out of the queue; nothing happens when there is none."""
        for opening in [opening for opening in self.waiting if opening.key == key]:
            self.waiting.remove(opening)
            self.outbox.settled.append((opening, MeshError("the session was closed before it was admitted")))
        if (session := self.sessions.get(key)) is not None:
            self._end(session)

    def abandon(self, opening: Opening) -> None:
        """The caller of `open` has gone: end what it opened, and not what replaced it."""
        self.waiting.remove(opening)
        session = self.sessions.get(opening.key)
        if session is not None and session.spec is opening.spec:
            self._end(session)

    def lose_stream(self, stream: AnswerStream) -> None:
        """Forget entries whose answers nobody would get; their sessions live on until their lease ends."""
        for session in list(self._pending.values()):
            if session.entry is not None and session.entry.stream is stream:
                self._take_entry(session)
                session.conditional.clear()

    def drain(self) -> None:
        """Take no new sessions; those that wait for memory are sent elsewhere."""
        self.draining = True
        for opening in list(self.waiting):
            self.waiting.remove(opening)
            self.outbox.settled.append((opening, Draining("this verifier is draining and takes no new sessions")))

    # What the passing of time brings.

    @property
    def next_sweep_ns(self) -> int:
        """When `sweep` has something to look at."""
        return self._next_sweep_ns

    def sweep(self) -> None:
        """End sessions and openings whose time has run out."""
        now_ns = self._clock()
        if now_ns < self._next_sweep_ns:
            return
        for session in list(self.sessions.values()):
            self._sweep_session(session, now_ns)
        for opening in [opening for opening in self.waiting if opening.deadline_ns <= now_ns]:
            self.waiting.remove(opening)
            message = "no cache memory became free in the time that the session had left"
            self.outbox.settled.append((opening, Overloaded(message)))
        ends = [session.ends_ns for session in self.sessions.values()]
        self._next_sweep_ns = min([*ends, *(opening.deadline_ns for opening in self.waiting)], default=NEVER_NS)

    def _sweep_session(self, session: Session, now_ns: int) -> None:
        if session.deadline_ns <= now_ns:
            self._fail(session, EntryErrorReason.DEADLINE_EXCEEDED, "the session's remaining time has passed")
        elif session.entry is not None:
            session.touch(now_ns)  # The lease is on the peer's silence, and the peer is waiting for us.
        elif session.expires_ns <= now_ns:
            self.counters["leases_ended"] += 1
            self._end(session)

    # The tick.

    @property
    def has_work(self) -> bool:
        """Whether a tick would have someone to serve."""
        return bool(self._pending or self._prefilling)

    def gather_until_ns(self) -> int | None:
        """Until when the next tick should wait for sessions of the last one; None: not at all."""
        if not self.has_work:
            return None
        return self._gather.wait_until(self._clock())

    def tick(self) -> None:
        """One forward pass over all that are ready. A failure fails the sessions that took part, and no others."""
        started_ns = self._clock()
        self._fail_late(started_ns)
        shares = plan(self._pending.values(), self._prefilling.values(), self._limits)
        if not shares:
            return
        self.counters["ticks"] += 1
        try:
            verified = self._backend.verify([work_of(share) for share in shares])
        except Exception:  # noqa: BLE001  out of memory or a fault of the model: the others must live
            _log.exception("a tick failed", extra={"sessions": len(shares)})
            self.counters["failed_ticks"] += 1
            for share in shares:
                self._fail(
                    share.session, EntryErrorReason.INTERNAL, "the forward pass failed; the server's log has more"
                )
            return
        self._commit(shares, verified, started_ns)

    def _fail_late(self, now_ns: int) -> None:
        for session in list(self._pending.values()):
            entry = session.entry
            if entry is not None and entry.deadline_ns <= now_ns:
                self._take_entry(session)
                session.conditional.clear()
                message = "remaining_ms had passed when the entry's turn came"
                self._fail_entry(session, entry, EntryErrorReason.DEADLINE_EXCEEDED, message)

    def _commit(self, shares: Sequence[Share], verified: Verified, started_ns: int) -> None:
        outcomes = iter(verified.outcomes)
        answered = [share.session.key for share in shares if share.verify]
        for share in shares:
            if share.verify:
                self._commit_step(share.session, next(outcomes), verified, started_ns, len(shares))
            else:
                share.session.prefilled(share.num_context)
            self._rotate(share.session)
        # Whoever has its next entry already is not away.
        away = [key for key in answered if (live := self.sessions.get(key)) is not None and live.entry is None]
        self._gather.tick_ended(away, started_ns, self._clock())

    def _rotate(self, session: Session) -> None:
        """Put a session that still has a prompt to feed behind the others."""
        self._prefilling.pop(session.key, None)
        if session.uncached > 1 and self.sessions.get(session.key) is session:
            self._prefilling[session.key] = session

    def _commit_step(
        self, session: Session, outcome: VerifyOutcome, verified: Verified, started_ns: int, batch_size: int
    ) -> None:
        if not outcome.finite:
            self.counters["non_finite_logits"] += 1
            self._fail(session, EntryErrorReason.NON_FINITE_LOGITS, "the target's logits were not finite")
            return
        entry = self._take_entry(session)
        emission = session.commit(entry.token_ids, outcome.num_accepted, outcome.next_token)
        now_ns = self._clock()
        session.touch(now_ns)
        timing = timing_of(entry, verified, started_ns, now_ns)
        result = result_of(session, entry, emission, outcome, timing, batch_size)
        self._answer(entry.stream, result)
        if emission.finish_reason is not None:
            self._end(session)
        else:
            self._go_on(session, entry, now_ns)

    def _go_on(self, session: Session, answered: Entry, now_ns: int) -> None:
        """Start what follows the step without the network, if anything does; other conditional blocks are forgotten."""
        entry = following(session, answered, now_ns)
        taken = entry is not None and not answered.run_count
        self.counters["conditional_taken"] += taken
        self.counters["conditional_dropped"] += len(session.conditional) - taken
        session.conditional.clear()
        if entry is not None:
            self._start(session, entry)

    # Small steps of the above.

    def _admit(self) -> None:
        while (opening := self.waiting.first()) is not None:
            spec = opening.spec
            limit = context_limit(spec, self._backend.max_context_tokens)
            if not self._backend.open(opening.key, limit):
                return
            self.waiting.remove(opening)
            session = Session(
                spec,
                max_context_tokens=self._backend.max_context_tokens,
                now_ns=self._clock(),
                deadline_ns=opening.deadline_ns,
            )
            self.sessions[session.key] = session
            self._rotate(session)
            self._sweep_by(session.ends_ns)
            self.counters["sessions_opened"] += 1
            self.outbox.settled.append((opening, None))

    def _sweep_by(self, time_ns: int) -> None:
        self._next_sweep_ns = min(self._next_sweep_ns, time_ns)

    def _start(self, session: Session, entry: Entry) -> None:
        session.take(entry)
        self._pending[session.key] = session

    def _take_entry(self, session: Session) -> Entry:
        entry = session.entry
        assert entry is not None
        session.entry = None
        del self._pending[session.key]
        return entry

    def _answer(self, stream: AnswerStream, answer: Answer) -> None:
        self.outbox.answers.setdefault(stream, []).append(answer)

    def _fail_entry(self, session: Session, entry: Entry, reason: EntryErrorReason, message: str) -> None:
        self.counters[f"entries_failed.{reason.value}"] += 1
        self._answer(entry.stream, EntryFailure(session.spec.session_id, entry.position, reason, message))

    def _fail(self, session: Session, reason: EntryErrorReason, message: str) -> None:
        """End a session by failure; its entry, if one waits, is answered so."""
        if session.entry is not None:
            self._fail_entry(session, session.entry, reason, message)
        self._end(session)

    def _end(self, session: Session) -> None:
        del self.sessions[session.key]
        self._prefilling.pop(session.key, None)
        if session.entry is not None:
            self._take_entry(session)
        self._gather.gone(session.key)
        self._backend.close(session.key)
        self._admit()

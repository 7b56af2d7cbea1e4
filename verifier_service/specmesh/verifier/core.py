"""All that the engine decides, on one thread and without one: sessions, admission, leases, ticks.

Time comes from `clock`, computing from the backend, and what is to be told to the event loop collects in `outbox`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from specmesh.kernels.inputs import VerifyOutcome
from specmesh.runtime.errors import Draining, MeshError, Overloaded
from specmesh.runtime.types import EntryErrorReason, EntryFailure
from specmesh.verifier.admission import AdmissionQueue, Opening
from specmesh.verifier.backend import Backend, Verified, Work
from specmesh.verifier.batcher import Feeding, TickLimits, plan
from specmesh.verifier.entries import EntryLimits, following, problem_with
from specmesh.verifier.forwards import run_forwards
from specmesh.verifier.gather import Gather
from specmesh.verifier.memory import Memory
from specmesh.verifier.outbox import Outbox
from specmesh.verifier.session import NEVER_NS, AnswerStream, Entry, Session, SessionKey
from specmesh.verifier.step import Tick


class Core:
    """State of the engine. One thread at a time."""

    def __init__(
        self,
        backend: Backend,
        *,
        limits: TickLimits,
        entry_limits: EntryLimits,
        max_waiting_sessions: int,
        max_sessions: int | None = None,
        clock: Callable[[], int],
        gather: Gather | None = None,
    ) -> None:
        self.sessions: dict[SessionKey, Session] = {}
        self.counters: Counter[str] = Counter()
        self.outbox = Outbox()
        self.draining = False
        self._backend = backend
        self._limits = limits
        self._entry_limits = entry_limits
        self._clock = clock
        self._gather = gather or Gather()
        self._feeding = Feeding()
        self._memory = Memory(backend, max_waiting_sessions, max_sessions)
        self._pending: dict[SessionKey, Session] = {}
        self._prefilling: dict[SessionKey, Session] = {}
        self._next_sweep_ns = self._next_late_ns = NEVER_NS

    @property
    def waiting(self) -> AdmissionQueue:
        """Sessions that wait for memory."""
        return self._memory.waiting

    # What peers ask for.

    def open(self, opening: Opening) -> None:
        """Admit a session, or queue it. An open session of the same peer and id is replaced."""
        self.close(opening.key)
        if self.draining:
            self.outbox.refuse([opening], Draining("this verifier is draining and takes no new sessions"))
            return
        self._sweep_by(opening.deadline_ns)
        self.waiting.add(opening)
        self._admit()
        if (error := self.waiting.refuse_excess(opening)) is not None:
            self.outbox.refuse([opening], error)

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
        waiting = self.waiting.take_openings(lambda opening: opening.key == key)
        self.outbox.refuse(waiting, MeshError("the session was closed before it was admitted"))
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
        error = Draining("this verifier is draining and takes no new sessions")
        self.outbox.refuse(self.waiting.take_openings(lambda opening: True), error)

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
        late = self.waiting.take_openings(lambda opening: opening.deadline_ns <= now_ns)
        self.outbox.refuse(late, Overloaded("no cache memory became free in the time that the session had left"))
        ends = [session.ends_ns for session in self.sessions.values()]
        self._next_sweep_ns = min(
            [*ends, *(opening.deadline_ns for opening in self.waiting.openings)], default=NEVER_NS
        )

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
        return bool(self._prefilling) or any(session.seated for session in self._pending.values())

    def gather_until_ns(self) -> int | None:
        """Until when the next tick should wait for sessions of the last one; None: not at all."""
        if not self.has_work:
            return None
        return self._gather.wait_until(self._clock(), len(self._pending))

    def tick(self) -> None:
        """One forward pass over all that are ready. A failure fails the sessions that took part, and no others."""
        started_ns = self._clock()
        self._fail_late(started_ns)
        prompts = list(self._feeding.prompts(self._prefilling, self._ready()))
        batch = self._with_memory(plan(self._ready(), prompts, self._limits))
        if not batch:
            return
        self.counters["ticks"] += 1
        for part, verified in run_forwards(self._backend, batch):
            if verified is not None:
                self._commit(part, verified, started_ns)
                continue
            self.counters["failed_ticks"] += 1
            for work in part:
                message = "the forward pass failed; the server's log has more"
                self._fail(work.session, EntryErrorReason.INTERNAL, message)
        # Whoever has ended, or has its next entry already, is not away.
        answered = [work.session for work in batch if work.verify is not None]
        away = [session.key for session in answered if session.entry is None and session.seated]
        self._gather.tick_ended(away, started_ns, self._clock())
        self._feeding.tick_ended(bool(prompts), self._clock())

    def _ready(self) -> Iterable[Session]:
        if self.waiting:
            return [session for session in self._pending.values() if session.seated]
        return self._pending.values()

    def _with_memory(self, batch: Sequence[Work]) -> Sequence[Work]:
        """Those that can take part; others may have lost their memory to them."""
        batch, preempted = self._memory.make_room(batch)
        for session in preempted:
            self._prefilling.pop(session.key, None)
        if preempted:
            self.counters["preemptions"] += len(preempted)
            self._admit()
        return batch

    def _fail_late(self, now_ns: int) -> None:
        if now_ns < self._next_late_ns:
            return
        self._next_late_ns = NEVER_NS
        for session in list(self._pending.values()):
            entry = session.entry
            if entry is not None and entry.deadline_ns <= now_ns:
                self._take_entry(session)
                session.conditional.clear()
                message = "remaining_ms had passed when the entry's turn came"
                self._fail_entry(session, entry, EntryErrorReason.DEADLINE_EXCEEDED, message)
            elif entry is not None:
                self._next_late_ns = min(self._next_late_ns, entry.deadline_ns)

    def _commit(self, batch: Sequence[Work], verified: Verified, started_ns: int) -> None:
        outcomes = iter(verified.outcomes)
        tick = Tick(started_ns, self._clock(), verified.forward_ns, verified.verify_ns, len(batch))
        for work in batch:
            session = work.session
            if work.verify is not None:
                self._commit_step(session, next(outcomes), tick)
            else:
                session.prefilled(len(work.token_ids))
            if self._prefilling:
                self._rotate(session)
            if session.cached >= session.shareable_at and session.seated:
                self._memory.share(session)

    def _rotate(self, session: Session) -> None:
        """Put a session that still has a prompt to feed behind the others."""
        self._prefilling.pop(session.key, None)
        if session.seated and session.uncached > 1:
            self._prefilling[session.key] = session

    def _commit_step(self, session: Session, outcome: VerifyOutcome, tick: Tick) -> None:
        if not outcome.finite:
            self.counters["non_finite_logits"] += 1
            self._fail(session, EntryErrorReason.NON_FINITE_LOGITS, "the target's logits were not finite", forget=True)
            return
        entry = self._take_entry(session)
        emission = session.commit(entry.token_ids, outcome.num_accepted, outcome.next_token)
        session.touch(tick.ended_ns)
        self.outbox.say(entry.stream, (session.key[1], entry, emission, outcome, tick))
        if emission.finish_reason is not None:
            self._end(session)
        elif session.conditional or entry.run_count:
            self._go_on(session, entry, tick.ended_ns)

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
        while (admitted := self._memory.admit_next(self._clock())) is not None:
            session = admitted.session
            self.sessions[session.key] = session
            self._rotate(session)
            self._sweep_by(session.ends_ns)
            self.counters["tokens_found_cached"] += session.cached
            if admitted.opening is not None:
                self.counters["sessions_opened"] += 1
                self.outbox.settled.append((admitted.opening, session.cached))

    def _sweep_by(self, time_ns: int) -> None:
        self._next_sweep_ns = min(self._next_sweep_ns, time_ns)

    def _start(self, session: Session, entry: Entry) -> None:
        session.take(entry)
        self._next_late_ns = min(self._next_late_ns, entry.deadline_ns)
        self._pending[session.key] = session

    def _take_entry(self, session: Session) -> Entry:
        entry, session.entry = session.entry, None
        assert entry is not None
        del self._pending[session.key]
        return entry

    def _fail_entry(self, session: Session, entry: Entry, reason: EntryErrorReason, message: str) -> None:
        self.counters[f"entries_failed.{reason.value}"] += 1
        self.outbox.say(entry.stream, EntryFailure(session.spec.session_id, entry.position, reason, message))

    def _fail(self, session: Session, reason: EntryErrorReason, message: str, *, forget: bool = False) -> None:
        """End a session by failure; its entry, if one waits, is answered so."""
        if session.entry is not None:
            self._fail_entry(session, session.entry, reason, message)
        self._end(session, forget=forget)

    def _end(self, session: Session, *, forget: bool = False) -> None:
        del self.sessions[session.key]
        self._prefilling.pop(session.key, None)
        if session.entry is not None:
            self._take_entry(session)
        self._gather.gone(session.key)
        self._memory.leave(session, forget=forget)
        self._admit()

"""Which entries of a session may be outstanding at once, and which one follows a step. Pure.

A session has at most one entry in flight: a block, or a run of plain tokens. While it is in flight, conditional blocks
may be sent ahead, each for one way in which that step may end. The one whose outcome comes true becomes the next entry,
the others are forgotten without an answer. A conditional block that comes after its step has been answered is treated
alike, so what happens to it never depends on time: a block is chosen by the outcome alone (specification 2, 1.5).
"""

from dataclasses import dataclass, replace

from specmesh.runtime.types import EntryErrorReason, Outcome
from specmesh.verifier.session import Entry, Session

Problem = tuple[EntryErrorReason, str]


@dataclass(frozen=True, slots=True)
class EntryLimits:
    """Bounds of what one session may have outstanding."""

    max_conditional: int = 4
    max_run_tokens: int = 256


def problem_with(session: Session, entry: Entry, limits: EntryLimits) -> Problem | None:
    """What is wrong with an entry of that session; None: take it."""
    if entry.run_count and (entry.token_ids or entry.refusal is not None):
        return _invalid("run_count: a run has no block")
    if entry.run_count > limits.max_run_tokens:
        return _invalid(f"run_count: {entry.run_count} exceed engine.max_run_tokens: {limits.max_run_tokens}")
    if entry.after is not None:
        return _problem_with_conditional(session, entry, entry.after, limits)
    if session.entry is not None:
        return _invalid("outstanding entries: at most 1 per session without `after`, one is waiting")
    if entry.position != session.position:
        return _mismatch(f"position: {entry.position} was sent, the session is at {session.position}")
    return None


def _problem_with_conditional(session: Session, entry: Entry, after: Outcome, limits: EntryLimits) -> Problem | None:
    follows = after.position + after.num_accepted + 1
    if entry.position != follows:
        return _invalid(f"position: {entry.position} was sent, the step of `after` would end at {follows}")
    if session.entry is not None and after.position == session.position:
        if session.entry.run_count:
            return _invalid("after: a run takes no conditional blocks")
        if after in session.conditional:
            return _invalid("after: a block for this outcome is there already")
        if len(session.conditional) >= limits.max_conditional:
            return _invalid(f"after: more than engine.max_conditional: {limits.max_conditional} conditional blocks")
        return None
    if session.last_outcome is None or after.position != session.last_outcome.position:
        return _mismatch(f"after: no step that started at {after.position} is in flight or was the last one")
    if after == session.last_outcome and session.entry is not None:
        return _invalid("outstanding entries: the step that follows this outcome has an entry already")
    return None


def _invalid(message: str) -> Problem:
    return EntryErrorReason.INVALID_VALUE, message


def _mismatch(message: str) -> Problem:
    return EntryErrorReason.CONTEXT_MISMATCH, message


def following(session: Session, answered: Entry, now_ns: int) -> Entry | None:
    """The entry that follows a committed step without the network: the rest of a run, or the block for its outcome.

    It waits for its tick from now on.
    """
    if answered.run_count > 1:
        return replace(answered, position=session.position, run_count=answered.run_count - 1, arrived_ns=now_ns)
    taken = None if session.last_outcome is None else session.conditional.get(session.last_outcome)
    return None if taken is None else replace(taken, arrived_ns=now_ns)

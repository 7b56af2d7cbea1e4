"""Who takes part in a tick, and with how many tokens. No clock, no tensors; of a session only `block` is written.

Every session with a block to verify takes part, the longest-waiting first, as far as the rows go; prompts get chunks
from a budget of their own, so neither can starve the other, and the next chunk of a long prompt comes a tick later, or
two where somebody has waited out the last one already: no answer is late by two chunks.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from specmesh.verifier.backend import Work
from specmesh.verifier.session import Session, SessionKey
from specmesh.verifier.step import chunk_of, step_of


@dataclass(frozen=True, slots=True)
class TickLimits:
    """Bounds of one tick. `max_verify_rows` is at least one block's rows (its length + 1)."""

    max_verify_rows: int
    max_prefill_tokens: int


class Feeding:
    """Which ticks feed prompts: of two in a row at least one."""

    def __init__(self) -> None:
        self._fed_until_ns = 0

    def prompts(self, prefilling: Mapping[SessionKey, Session], ready: Iterable[Session]) -> Collection[Session]:
        """Those that the next tick may feed; none where one that verifies in it came while the last chunk was fed."""
        return () if prefilling and any(map(self._has_waited, ready)) else prefilling.values()

    def _has_waited(self, session: Session) -> bool:
        entry = session.entry
        return entry is not None and entry.arrived_ns < self._fed_until_ns and session.uncached == 1

    def tick_ended(self, fed: bool, now_ns: int) -> None:
        """A tick with or without a chunk is over."""
        self._fed_until_ns = now_ns if fed else 0


def plan(pending: Iterable[Session], prefilling: Iterable[Session], limits: TickLimits) -> list[Work]:
    """The work of the next tick. It writes the `block` of each session that verifies, and its `Work.verify` is that.

    `pending`: sessions with an entry, longest-waiting first. `prefilling`: sessions with more than one token of context
    to feed, with or without an entry, least recently served first. A session that is in both verifies in the tick in
    which its last chunk fits.
    """
    chunks = _chunks(prefilling, limits.max_prefill_tokens)
    rows = limits.max_verify_rows
    batch: list[Work] = []
    for session in pending:
        chunk = chunks.pop(session, 0) if chunks else 0
        entry = session.entry
        if entry is not None and chunk == session.uncached - 1 and len(entry.token_ids) < rows:
            rows -= 1 + len(entry.token_ids)
            batch.append(step_of(session, entry))
        elif chunk:
            batch.append(chunk_of(session, chunk))
    return batch + [chunk_of(session, chunk) for session, chunk in chunks.items()]


def _chunks(prefilling: Iterable[Session], budget: int) -> dict[Session, int]:
    chunks: dict[Session, int] = {}
    for session in prefilling:
        chunk = min(session.uncached - 1, budget)
        if chunk == 0:
            break
        chunks[session] = chunk
        budget -= chunk
    return chunks

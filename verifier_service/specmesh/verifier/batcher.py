"""Who takes part in a tick, and with how many tokens. Pure: no clock, no tensors.

Every session with a block to verify takes part, the longest-waiting first, as far as the rows go; prompts get chunks
from a budget of their own, so neither can starve the other, and the next chunk of a long prompt comes a tick later.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from specmesh.verifier.session import Session


@dataclass(frozen=True, slots=True)
class TickLimits:
    """Bounds of one tick. `max_verify_rows` is at least one block's rows (its length + 1)."""

    max_verify_rows: int
    max_prefill_tokens: int


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class Share:
    """One session's part in a tick: `num_context` tokens of its context from `cached` on, and its block or not."""

    session: Session
    num_context: int
    verify: bool


def plan(pending: Iterable[Session], prefilling: Iterable[Session], limits: TickLimits) -> list[Share]:
    """The shares of the next tick.

    `pending`: sessions with an entry, longest-waiting first. `prefilling`: sessions with more than one token of context
    to feed, with or without an entry, least recently served first. A session that is in both verifies in the tick in
    which its last chunk fits.
    """
    chunks = _chunks(prefilling, limits.max_prefill_tokens)
    rows = limits.max_verify_rows
    shares: list[Share] = []
    for session in pending:
        chunk = chunks.pop(session, 0)
        wanted = 1 + len(session.entry.token_ids) if session.entry else 1
        if chunk == session.uncached - 1 and wanted <= rows:
            rows -= wanted
            shares.append(Share(session, chunk + 1, verify=True))
        elif chunk:
            shares.append(Share(session, chunk, verify=False))
    return shares + [Share(session, chunk, verify=False) for session, chunk in chunks.items()]


def _chunks(prefilling: Iterable[Session], budget: int) -> dict[Session, int]:
    chunks: dict[Session, int] = {}
    for session in prefilling:
        chunk = min(session.uncached - 1, budget)
        if chunk == 0:
            break
        chunks[session] = chunk
        budget -= chunk
    return chunks

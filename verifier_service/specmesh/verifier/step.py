"""A session's part of a tick as work for the backend, and what comes back as the answer to its entry."""

from typing import NamedTuple

from specmesh.kernels.inputs import VerifyOutcome
from specmesh.runtime.types import StepResult, VerifyTiming
from specmesh.verifier.backend import Work
from specmesh.verifier.session import Emission, Entry, Session


class Tick(NamedTuple):
    """What a tick's answers have in common: when it began and ended, where its time went, how many took part."""

    started_ns: int
    ended_ns: int
    forward_ns: int
    verify_ns: int
    batch_size: int


Stepped = tuple[int, Entry, Emission, VerifyOutcome, Tick]
"""A committed step: the session's id and all that its answer is made of."""


def step_of(session: Session, entry: Entry) -> Work:
    """What is left of the context, and the block to verify."""
    start, block = session.cached, session.block
    tokens = session.context[start:]
    tokens += entry.token_ids
    block.block_start, block.draft_token_ids, block.rows = entry.position, entry.token_ids, entry.rows
    return Work(session, tokens, start, block)


def chunk_of(session: Session, num_tokens: int) -> Work:
    """The next `num_tokens` tokens of the context."""
    start = session.cached
    return Work(session, session.context[start : start + num_tokens], start)


def result_of(stepped: Stepped) -> StepResult:
    """The answer; what an entry waited for a prompt's chunks counts as queue."""
    session_id, entry, emission, outcome, tick = stepped
    return StepResult(
        session_id=session_id,
        position=entry.position,
        token_ids=emission.token_ids,
        num_accepted=emission.num_accepted,
        num_drafted=emission.num_drafted,
        logprobs=outcome.logprobs and outcome.logprobs[: len(emission.token_ids)],
        finish_reason=emission.finish_reason,
        stop_token_id=emission.stop_token_id,
        block_refusal=entry.refusal,
        timing=VerifyTiming(
            queue_ns=tick.started_ns - entry.arrived_ns,
            forward_ns=tick.forward_ns,
            verify_ns=tick.verify_ns,
            total_ns=tick.ended_ns - entry.arrived_ns,
        ),
        batch_size=tick.batch_size,
    )

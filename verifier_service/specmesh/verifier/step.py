"""A share of a tick as work for the backend, and what comes back as the answer to an entry."""

from specmesh.kernels.inputs import VerifyInput, VerifyOutcome
from specmesh.runtime.types import StepResult, VerifyTiming
from specmesh.verifier.backend import Verified, Work
from specmesh.verifier.batcher import Share
from specmesh.verifier.session import Emission, Entry, Session


def work_of(share: Share) -> Work:
    """The tokens that the share feeds, and the block to verify if it is its turn."""
    session = share.session
    entry, spec, start = session.entry, session.spec, session.cached
    context = session.context[start : start + share.num_context]
    if not share.verify or entry is None:
        return Work(session.key, context, start)
    block = VerifyInput(
        block_start=entry.position,
        draft_token_ids=entry.token_ids,
        rows=entry.rows,
        sampling=spec.sampling,
        rule=spec.rule,
        key=spec.verify_key,
        token_counts=session.counts,
    )
    context += entry.token_ids
    return Work(session.key, context, start, block, spec.logprobs)


def timing_of(entry: Entry, verified: Verified, started_ns: int, now_ns: int) -> VerifyTiming:
    """Where an entry's time went; what it waited for a prompt's chunks counts as queue."""
    return VerifyTiming(
        queue_ns=started_ns - entry.arrived_ns,
        forward_ns=verified.forward_ns,
        verify_ns=verified.verify_ns,
        total_ns=now_ns - entry.arrived_ns,
    )


def result_of(
    session: Session, entry: Entry, emission: Emission, outcome: VerifyOutcome, timing: VerifyTiming, batch_size: int
) -> StepResult:
    """The answer to an entry whose step is committed."""
    return StepResult(
        session_id=session.spec.session_id,
        position=entry.position,
        token_ids=emission.token_ids,
        num_accepted=emission.num_accepted,
        num_drafted=emission.num_drafted,
        logprobs=outcome.logprobs and outcome.logprobs[: len(emission.token_ids)],
        finish_reason=emission.finish_reason,
        stop_token_id=emission.stop_token_id,
        block_refusal=entry.refusal,
        timing=timing,
        batch_size=batch_size,
    )

"""Types to protobuf and back: the one place where the mesh spells field names of its internal messages."""

from collections.abc import Iterator, Sequence
from dataclasses import fields

from specmesh.runtime.contract import OPEN_CHUNK_TOKENS
from specmesh.runtime.errors import InvalidValue
from specmesh.runtime.types import (
    Block,
    BlockRefusal,
    ContextSource,
    DraftAsk,
    DraftEndReason,
    EntryErrorReason,
    EntryFailure,
    FinishReason,
    Outcome,
    Rule,
    Sampling,
    ServiceInfo,
    SessionSpec,
    StepResult,
    TokenLogprob,
    VerifyTiming,
)
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import entry_error_pb2 as error_pb
from specmesh.v1 import router_service_pb2 as router_pb
from specmesh.v1 import service_info_pb2 as info_pb
from specmesh.v1 import verifier_service_pb2 as verifier_pb

RULE_TO_PROTO = {
    Rule.BLOCK: router_pb.VERIFICATION_RULE_BLOCK,
    Rule.TOKEN: router_pb.VERIFICATION_RULE_TOKEN,
    Rule.COUPLED: router_pb.VERIFICATION_RULE_COUPLED,
}
RULE_FROM_PROTO: dict[int, Rule] = {number: rule for rule, number in RULE_TO_PROTO.items()}
FINISH_TO_PROTO = {
    FinishReason.STOP: router_pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: router_pb.FINISH_REASON_LENGTH,
}
FINISH_FROM_PROTO: dict[int, FinishReason] = {number: reason for reason, number in FINISH_TO_PROTO.items()}
REFUSAL_TO_PROTO = {r: verifier_pb.BlockRefusal.Value(f"BLOCK_REFUSAL_{r.name}") for r in BlockRefusal}
REFUSAL_FROM_PROTO = {number: refusal for refusal, number in REFUSAL_TO_PROTO.items()}
DRAFT_END_TO_PROTO = {r: draft_pb.DraftEndReason.Value(f"DRAFT_END_REASON_{r.name}") for r in DraftEndReason}
DRAFT_END_FROM_PROTO = {number: reason for reason, number in DRAFT_END_TO_PROTO.items()}
SOURCE_TO_PROTO = {s: draft_pb.ContextSource.Value(f"CONTEXT_SOURCE_{s.name}") for s in ContextSource}
SOURCE_FROM_PROTO = {number: source for source, number in SOURCE_TO_PROTO.items()}
ENTRY_ERROR_TO_PROTO = {r: error_pb.EntryErrorReason.Value(f"ENTRY_ERROR_REASON_{r.name}") for r in EntryErrorReason}
_INFO_FIELDS = tuple(field.name for field in fields(ServiceInfo))
ENTRY_ERROR_FROM_PROTO = {number: reason for reason, number in ENTRY_ERROR_TO_PROTO.items()}


def sampling_from_proto(message: router_pb.SamplingParams) -> Sampling:
    """Absent fields take their documented defaults. Raises `InvalidValue` naming the field."""
    given = {
        name: getattr(message, name)
        for name in (
            "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        )
        if message.HasField(name)
    }  # fmt: skip
    return Sampling(**given, logit_bias=tuple(sorted(message.logit_bias.items())))


def sampling_to_proto(sampling: Sampling) -> router_pb.SamplingParams:
    """Every scalar is set; floats become float32 on the wire, so a router converts once and keeps the result."""
    return router_pb.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
    )


def rule_from_proto(number: int) -> Rule:
    """Raises `InvalidValue` for a rule that is not set or not known."""
    if number not in RULE_FROM_PROTO:
        raise InvalidValue("rule", f"unknown verification rule {number}")
    return RULE_FROM_PROTO[number]


def token_chunks(token_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """A context in pieces that fit one `Open` message; one empty piece when there is nothing."""
    for start in range(0, max(len(token_ids), 1), OPEN_CHUNK_TOKENS):
        yield token_ids[start : start + OPEN_CHUNK_TOKENS]


def verify_open_messages(spec: SessionSpec, remaining_ms: int = 0) -> Iterator[verifier_pb.VerifierServiceOpenRequest]:
    """A session as the messages of `VerifierService.Open`; the first carries the header and the first ids."""
    header = verifier_pb.VerifyOpenHeader(
        session_id=spec.session_id,
        peer=spec.peer,
        context_length=len(spec.context),
        prompt_length=spec.prompt_length,
        sampling=sampling_to_proto(spec.sampling),
        rule=RULE_TO_PROTO[spec.rule],
        verify_key=spec.verify_key,
        draft_key=spec.draft_key,
        max_output_tokens=spec.max_output_tokens,
        stop_token_ids=sorted(spec.stop_token_ids),
        lease_ms=spec.lease_ms,
        logprobs=spec.logprobs,
        cache_salt=spec.cache_salt,
        priority=spec.priority,
        remaining_ms=remaining_ms,
    )
    for index, chunk in enumerate(token_chunks(spec.context)):
        yield verifier_pb.VerifierServiceOpenRequest(header=header if index == 0 else None, token_ids=chunk)


def session_spec_from_proto(header: verifier_pb.VerifyOpenHeader, context: Sequence[int]) -> SessionSpec:
    """Raises `InvalidValue` naming the field."""
    return SessionSpec(
        session_id=header.session_id,
        peer=header.peer,
        context=tuple(context),
        prompt_length=header.prompt_length,
        sampling=sampling_from_proto(header.sampling),
        rule=rule_from_proto(header.rule),
        verify_key=header.verify_key,
        draft_key=header.draft_key,
        max_output_tokens=header.max_output_tokens,
        stop_token_ids=frozenset(header.stop_token_ids),
        lease_ms=header.lease_ms,
        logprobs=header.logprobs if header.HasField("logprobs") else None,
        cache_salt=header.cache_salt,
        priority=header.priority,
    )


def block_to_entry(
    session_id: int, block: Block, *, remaining_ms: int = 0, traceparent: str = ""
) -> verifier_pb.VerifyRequestEntry:
    """A block to verify, as an entry of a frame."""
    return verifier_pb.VerifyRequestEntry(
        session_id=session_id,
        traceparent=traceparent,
        remaining_ms=remaining_ms,
        position=block.position,
        token_ids=block.token_ids,
        rows=block.rows,
        after=_outcome_to_proto(block.after),
        run_count=block.run_count,
    )


def _outcome_to_proto(after: Outcome | None) -> draft_pb.StepOutcome | None:
    if after is None:
        return None
    return draft_pb.StepOutcome(position=after.position, accepted_count=after.num_accepted, token_id=after.token_id)


def block_from_entry(entry: verifier_pb.VerifyRequestEntry) -> Block:
    """The block of an entry; checked later, against the session."""
    after = None
    if entry.HasField("after"):
        after = Outcome(entry.after.position, entry.after.accepted_count, entry.after.token_id)
    return Block(entry.position, tuple(entry.token_ids), tuple(entry.rows), after, entry.run_count)


def logprob_to_proto(logprob: TokenLogprob) -> router_pb.TokenLogprob:
    """As clients see it."""
    top = [router_pb.TopToken(token_id=token, logprob=value) for token, value in logprob.top]
    return router_pb.TokenLogprob(logprob=logprob.logprob, top=top)


def logprob_from_proto(message: router_pb.TokenLogprob) -> TokenLogprob:
    """Back from the wire."""
    return TokenLogprob(message.logprob, tuple((top.token_id, top.logprob) for top in message.top))


def step_result_to_entry(result: StepResult) -> verifier_pb.VerifyResponseEntry:
    """A verified step as an entry of a frame."""
    timing = result.timing
    return verifier_pb.VerifyResponseEntry(
        session_id=result.session_id,
        position=result.position,
        token_ids=result.token_ids,
        accepted_count=result.num_accepted,
        drafted_count=result.num_drafted,
        reward=result.reward,
        logprobs=[logprob_to_proto(logprob) for logprob in result.logprobs],
        finish_reason=FINISH_TO_PROTO[result.finish_reason] if result.finish_reason else None,
        stop_token_id=result.stop_token_id,
        block_refusal=REFUSAL_TO_PROTO[result.block_refusal] if result.block_refusal else None,
        timing=verifier_pb.VerifyTiming(
            queue_ns=timing.queue_ns,
            forward_ns=timing.forward_ns,
            verify_ns=timing.verify_ns,
            total_ns=timing.total_ns,
        ),
        batch_size=result.batch_size,
    )


def step_result_from_entry(entry: verifier_pb.VerifyResponseEntry) -> StepResult:
    """Back from the wire; an entry with `error` set is not a result."""
    timing = entry.timing
    return StepResult(
        session_id=entry.session_id,
        position=entry.position,
        token_ids=tuple(entry.token_ids),
        num_accepted=entry.accepted_count,
        num_drafted=entry.drafted_count,
        logprobs=tuple(logprob_from_proto(message) for message in entry.logprobs),
        finish_reason=_finish_from_proto(entry.finish_reason),
        stop_token_id=entry.stop_token_id if entry.HasField("stop_token_id") else None,
        block_refusal=_refusal_from_proto(entry.block_refusal),
        timing=VerifyTiming(timing.queue_ns, timing.forward_ns, timing.verify_ns, timing.total_ns),
        batch_size=entry.batch_size,
    )


def _finish_from_proto(number: int) -> FinishReason | None:
    """A reason that a later version added: the text has ended all the same."""
    return FINISH_FROM_PROTO.get(number, FinishReason.STOP) if number else None


def _refusal_from_proto(number: int) -> BlockRefusal | None:
    """A refusal that this build does not know is a refusal none the less."""
    return REFUSAL_FROM_PROTO.get(number, BlockRefusal.MALFORMED_ROW) if number else None


def entry_error_to_proto(failure: EntryFailure) -> error_pb.EntryError:
    """The `error` of a response entry; session and position are the entry's own fields."""
    return error_pb.EntryError(reason=ENTRY_ERROR_TO_PROTO[failure.reason], message=failure.message)


def entry_failure_from_proto(session_id: int, position: int, error: error_pb.EntryError) -> EntryFailure:
    """Back from the wire; a reason that this build does not know is INTERNAL."""
    reason = ENTRY_ERROR_FROM_PROTO.get(error.reason, EntryErrorReason.INTERNAL)
    return EntryFailure(session_id, position, reason, error.message)


def draft_ask_to_entry(
    ask: DraftAsk,
    *,
    remaining_ms: int = 0,
    traceparent: str = "",
    sampling: router_pb.SamplingParams | None = None,
) -> draft_pb.DraftRequestEntry:
    """What a router asks of a draft, as an entry of a frame; `sampling` is the ask's own, made before."""
    return draft_pb.DraftRequestEntry(
        session_id=ask.session_id,
        traceparent=traceparent,
        remaining_ms=remaining_ms,
        position=ask.position,
        context_hash=ask.context_hash,
        delta_token_ids=ask.delta_token_ids,
        block_length=ask.block_length,
        conditional_count=ask.num_conditional,
        max_row=ask.max_row,
        sampling=sampling_to_proto(ask.sampling) if sampling is None else sampling,
        rule=RULE_TO_PROTO[ask.rule],
        draft_key=ask.draft_key,
        block_deadline_ms=ask.block_deadline_ms,
        want_scores=ask.want_scores,
    )


def draft_ask_from_entry(entry: draft_pb.DraftRequestEntry) -> DraftAsk:
    """Raises `InvalidValue` naming the field."""
    return DraftAsk(
        session_id=entry.session_id,
        position=entry.position,
        context_hash=entry.context_hash,
        delta_token_ids=tuple(entry.delta_token_ids),
        block_length=entry.block_length,
        sampling=sampling_from_proto(entry.sampling),
        rule=rule_from_proto(entry.rule),
        draft_key=entry.draft_key,
        max_row=entry.max_row,
        num_conditional=entry.conditional_count,
        block_deadline_ms=entry.block_deadline_ms,
        want_scores=entry.want_scores,
    )


def service_info_to_proto(info: ServiceInfo) -> info_pb.ServiceInfo:
    """What a service says of itself; the fields have the same names on both sides."""
    return info_pb.ServiceInfo(**{name: getattr(info, name) for name in _INFO_FIELDS})


def service_info_from_proto(message: info_pb.ServiceInfo) -> ServiceInfo:
    """Back from the wire."""
    return ServiceInfo(**{name: getattr(message, name) for name in _INFO_FIELDS})

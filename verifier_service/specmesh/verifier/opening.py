"""An `Open` call from its messages: every limit is checked before the work that it bounds."""

from array import array
from collections.abc import AsyncIterator, Sequence

from specmesh.runtime import wire
from specmesh.runtime.contract import OPEN_CHUNK_TOKENS
from specmesh.runtime.errors import ContextTooLong, InvalidValue
from specmesh.runtime.types import SessionSpec
from specmesh.runtime.unknown_fields import refuse_unknown_fields
from specmesh.v1 import verifier_service_pb2 as pb
from specmesh.verifier.config import LimitsConfig


async def read_open(
    messages: AsyncIterator[pb.VerifierServiceOpenRequest],
    *,
    limits: LimitsConfig,
    vocabulary_size: int,
    max_context_tokens: int,
) -> tuple[SessionSpec, int]:
    """The session that is asked for and its remaining milliseconds (0: no bound).

    Raises `InvalidValue`, `ContextTooLong` or `UnknownField` naming the field.
    """
    header: pb.VerifyOpenHeader | None = None
    context = array("L")
    num_messages = 0
    async for message in messages:
        refuse_unknown_fields(message)
        num_messages += 1
        if num_messages > limits.max_open_chunks:
            raise InvalidValue("token_ids", f"limits.max_open_chunks: more than {limits.max_open_chunks} messages")
        if header is None:
            header = _checked_header(message, limits, max_context_tokens)
        elif message.HasField("header"):
            raise InvalidValue("header", "only the first message has one")
        _check_chunk(len(message.token_ids), len(context), header.context_length)
        context.extend(message.token_ids)
    if header is None or len(context) != header.context_length:
        expected = 0 if header is None else header.context_length
        raise InvalidValue("context_length", f"{expected} tokens were announced, {len(context)} came")
    spec = wire.session_spec_from_proto(header, context)
    _check_spec(spec, limits, vocabulary_size)
    return spec, header.remaining_ms


def _checked_header(
    message: pb.VerifierServiceOpenRequest, limits: LimitsConfig, max_context_tokens: int
) -> pb.VerifyOpenHeader:
    if not message.HasField("header"):
        raise InvalidValue("header", "the first message must have one")
    header = message.header
    if header.prompt_length < 1:
        raise InvalidValue("prompt_length", "a prompt must have at least one token")
    if header.prompt_length > header.context_length:
        raise InvalidValue("prompt_length", f"{header.prompt_length} of a context of {header.context_length} tokens")
    if limits.max_prompt_tokens is not None and header.prompt_length > limits.max_prompt_tokens:
        limit = f"limits.max_prompt_tokens: {limits.max_prompt_tokens}"
        raise ContextTooLong("prompt_length", f"{header.prompt_length} tokens exceed {limit}")
    if header.context_length >= max_context_tokens:
        limit = f"max_context_tokens: {max_context_tokens}, of which one must be left to emit"
        raise ContextTooLong("context_length", f"{header.context_length} tokens exceed {limit}")
    return header


def _check_chunk(num_tokens: int, num_before: int, context_length: int) -> None:
    if num_tokens > OPEN_CHUNK_TOKENS:
        raise InvalidValue("token_ids", f"{num_tokens} in one message, the limit is {OPEN_CHUNK_TOKENS}")
    if num_before + num_tokens > context_length:
        raise InvalidValue("context_length", f"{context_length} tokens were announced, more came")


def _check_spec(spec: SessionSpec, limits: LimitsConfig, vocabulary_size: int) -> None:
    """Refuse what cannot be served as asked; what the law needs is checked by `Sampling` itself."""
    _check_ids("token_ids", spec.context, vocabulary_size)
    _check_ids("stop_token_ids", spec.stop_token_ids, vocabulary_size)
    _check_ids("sampling.logit_bias", [token for token, _ in spec.sampling.logit_bias], vocabulary_size)
    if not spec.peer:
        raise InvalidValue("peer", "must not be empty")
    if len(spec.stop_token_ids) > limits.max_stop_token_ids:
        limit = f"limits.max_stop_token_ids: {limits.max_stop_token_ids}"
        raise InvalidValue("stop_token_ids", f"{len(spec.stop_token_ids)} exceed {limit}")
    if spec.logprobs is not None and spec.logprobs > limits.max_logprobs:
        raise InvalidValue("logprobs", f"{spec.logprobs} exceed limits.max_logprobs: {limits.max_logprobs}")
    if not 1 <= spec.lease_ms <= limits.max_lease_ms:
        raise InvalidValue("lease_ms", f"{spec.lease_ms} is not in 1 to limits.max_lease_ms: {limits.max_lease_ms}")
    output = spec.context[spec.prompt_length :]
    if len(output) >= spec.max_output_tokens:
        raise InvalidValue("max_output_tokens", f"{spec.max_output_tokens}, and {len(output)} are emitted already")
    if not spec.stop_token_ids.isdisjoint(output):
        raise InvalidValue("token_ids", "the output holds a stop token already: this text has ended")


def _check_ids(field: str, token_ids: Sequence[int] | frozenset[int] | list[int], vocabulary_size: int) -> None:
    if token_ids and max(token_ids) >= vocabulary_size:
        raise InvalidValue(field, f"an id is not in the vocabulary of {vocabulary_size}")

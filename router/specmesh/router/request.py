"""A `GenerateRequest` to a plan in which every field has been checked; nothing of a request is ignored."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specmesh.router.arms import ArmFacts, DraftScope
from specmesh.router.callers import DEBUG, Caller
from specmesh.router.registration import Target
from specmesh.router.text import TextStream
from specmesh.runtime.errors import ContextTooLong, InvalidValue, UnknownModel, UnsupportedOption
from specmesh.runtime.types import (
    MAX_LOGPROBS,
    MAX_STOP_STRING_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    Rule,
    Sampling,
)
from specmesh.runtime.unknown_fields import refuse_unknown_fields
from specmesh.runtime.wire import rule_from_proto, sampling_from_proto
from specmesh.v1 import router_service_pb2 as pb

MAX_PRIORITY = 10
MAX_CHUNK_INTERVAL_SECONDS = 60.0
ROLES = ("system", "user", "assistant")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class TextModel(Protocol):
    """What a request needs of a tokenizer."""

    def encode_text(self, text: str) -> Sequence[int]:
        """Ids of a text with the model's special tokens."""

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> Sequence[int]:
        """Ids of (role, content) pairs in the model's own chat template."""

    def stream(self, stop_strings: Sequence[str]) -> TextStream:
        """The text of one session's output."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that can be served as it stands."""

    request_id: str
    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    sampling: Sampling
    rule: Rule
    seed: int | None
    max_output_tokens: int
    stop_token_ids: frozenset[int]
    """EOS among them unless it is ignored."""
    stop_strings: tuple[str, ...]
    scope: DraftScope
    max_block_length: int | None = None
    logprobs: int | None = None
    min_chunk_interval: float = 0.0
    unary: bool = False
    step_reports: bool = False
    priority: int = 0
    workload: str = ""
    cache_salt: bytes = b""

    @property
    def leaves_drafts_to_policy(self) -> bool:
        """Whether the request says nothing of drafts: neither that there be none, nor which, nor how long."""
        return bool(self.scope.pools) and self.scope.arms is None and self.max_block_length is None

    @property
    def max_tokens(self) -> int:
        """Of the prompt and of the longest output that is still to come."""
        return len(self.prompt) + self.max_output_tokens - len(self.continuation)


@dataclass(frozen=True, slots=True)
class Offer:
    """What this router serves at the moment, and its limits."""

    target: Target
    text: TextModel | None
    """None for a target whose ids have no text."""
    arms: tuple[ArmFacts, ...]
    """Every arm known, in whatever state."""
    untrusted_pools: frozenset[str]
    workloads: frozenset[str]
    max_text_bytes: int


def plan_request(request: pb.GenerateRequest, caller: Caller, offer: Offer) -> Plan:
    """Check every field and work out what is not given. Raises a `MeshError` that names the first bad field."""
    refuse_unknown_fields(request)
    if request.model not in ("", offer.target.name):
        raise UnknownModel("model: not served here; ListModels names what is", field="model")
    sampling = _sampling(request.sampling, offer.target.info.vocabulary_size)
    pools, arms = _pools(request.draft, caller, offer)
    rule = _rule(request.sampling, reaches_untrusted=bool(pools & offer.untrusted_pools))
    scope = DraftScope(pools, arms, needs_trust=rule is not Rule.COUPLED and not sampling.greedy)
    output = request.output
    if output.step_reports:
        caller.require(DEBUG)
    limit, stop_tokens = _max_output_tokens(request.stop, offer), _stop_tokens(request.stop, offer)
    prompt = _prompt(request, offer)
    continuation = _continuation(request, prompt, limit, offer)
    if not stop_tokens.isdisjoint(continuation[:-1]):
        raise InvalidValue("continuation_token_ids", "goes on after a token that ends the text")
    return Plan(
        request_id=_request_id(request.request_id),
        prompt=prompt,
        continuation=continuation,
        sampling=sampling,
        rule=rule,
        seed=request.sampling.seed if request.sampling.HasField("seed") else None,
        max_output_tokens=limit,
        stop_token_ids=stop_tokens,
        stop_strings=_stop_strings(request.stop, offer),
        scope=scope,
        max_block_length=request.draft.max_block_length if request.draft.HasField("max_block_length") else None,
        logprobs=_logprobs(output),
        min_chunk_interval=_chunk_interval(output),
        unary=output.unary,
        step_reports=output.step_reports,
        priority=_priority(request.priority, caller),
        workload=_workload(request.workload, offer),
        cache_salt=caller.name.encode(),
    )


def _request_id(given: str) -> str:
    if given and not _REQUEST_ID.fullmatch(given):
        raise InvalidValue("request_id", "1 to 64 of [A-Za-z0-9._-]")
    return given or secrets.token_hex(16)


def _sampling(message: pb.SamplingParams, vocabulary_size: int) -> Sampling:
    sampling = sampling_from_proto(message)
    for token, _ in sampling.logit_bias:
        if token >= vocabulary_size:
            raise InvalidValue("sampling.logit_bias", f"not an id of the vocabulary, which has {vocabulary_size}")
    return sampling


def _rule(message: pb.SamplingParams, *, reaches_untrusted: bool) -> Rule:
    """Specification 1.3. A seed promises the same text again, which only COUPLED can keep."""
    seeded = message.HasField("seed")
    if message.rule == pb.VERIFICATION_RULE_UNSPECIFIED:
        return Rule.COUPLED if seeded or reaches_untrusted else Rule.BLOCK
    try:
        rule = rule_from_proto(message.rule)
    except InvalidValue:
        raise InvalidValue("sampling.rule", f"unknown verification rule {message.rule}") from None
    if seeded and rule is not Rule.COUPLED:
        raise InvalidValue("sampling.rule", f"{rule.name} cannot keep a seed: leave out the rule or the seed")
    return rule


def _pools(options: pb.DraftOptions, caller: Caller, offer: Offer) -> tuple[frozenset[str], frozenset[str] | None]:
    """Pools that may see the context, and the names given with DRAFT_MODE_ONLY."""
    if options.mode not in pb.DraftMode.values():
        raise InvalidValue("draft.mode", f"unknown draft mode {options.mode}")
    if options.mode == pb.DRAFT_MODE_ONLY:
        return _named_pools(options, caller, offer)
    if options.arms:
        raise InvalidValue("draft.arms", "only with DRAFT_MODE_ONLY")
    return (frozenset() if options.mode == pb.DRAFT_MODE_OFF else caller.pools), None


def _named_pools(options: pb.DraftOptions, caller: Caller, offer: Offer) -> tuple[frozenset[str], frozenset[str]]:
    if not options.arms:
        raise InvalidValue("draft.arms", "DRAFT_MODE_ONLY needs at least one arm")
    # A pool that the caller may not reach is unknown to it: the answer says nothing about what others use.
    pool_of = {pool: pool for pool in caller.pools}
    pool_of |= {arm.name: arm.pool for arm in offer.arms if arm.pool in caller.pools}
    for index, name in enumerate(options.arms):
        if name not in pool_of:
            raise InvalidValue(f"draft.arms[{index}]", "no such arm or pool")
    return frozenset(pool_of[name] for name in options.arms), frozenset(options.arms)


def _prompt(request: pb.GenerateRequest, offer: Offer) -> tuple[int, ...]:
    kind = request.WhichOneof("input")
    if kind == "tokens":
        field, prompt = "tokens.ids", tuple(request.tokens.ids)
        _check_ids(field, prompt, offer)
    elif kind == "text":
        field, prompt = "text", tuple(_text(offer, "text", [request.text]).encode_text(request.text))
    elif kind == "chat":
        field, prompt = "chat.messages", _chat(request.chat, offer)
    else:
        raise InvalidValue("input", "one of text, tokens and chat is required")
    if not prompt:
        raise InvalidValue(field, "the prompt is empty")
    limit = offer.target.info.max_context_tokens
    if len(prompt) >= limit:
        raise ContextTooLong(field, f"{len(prompt)} tokens; the context of {limit} tokens must hold at least one more")
    return prompt


def _chat(chat: pb.ChatInput, offer: Offer) -> tuple[int, ...]:
    text = _text(offer, "chat.messages", [message.content for message in chat.messages])
    if not chat.messages:
        raise InvalidValue("chat.messages", "at least one message is required")
    for index, message in enumerate(chat.messages):
        if message.role not in ROLES:
            raise InvalidValue(f"chat.messages[{index}].role", f"must be one of {', '.join(ROLES)}")
    return tuple(text.encode_chat([(message.role, message.content) for message in chat.messages]))


def _text(offer: Offer, field: str, texts: list[str]) -> TextModel:
    if offer.text is None:
        raise UnsupportedOption(field, "this target has no tokenizer; send token ids")
    size = sum(len(text.encode()) for text in texts)
    if size > offer.max_text_bytes:
        raise ContextTooLong(field, f"{size} bytes of text; limits.max_text_bytes is {offer.max_text_bytes}")
    return offer.text


def _check_ids(field: str, token_ids: Sequence[int], offer: Offer) -> None:
    size = offer.target.info.vocabulary_size
    if token_ids and max(token_ids) >= size:
        index = next(index for index, token in enumerate(token_ids) if token >= size)
        raise InvalidValue(f"{field}[{index}]", f"not an id of the vocabulary, which has {size}")


def _continuation(request: pb.GenerateRequest, prompt: tuple[int, ...], limit: int, offer: Offer) -> tuple[int, ...]:
    token_ids = tuple(request.continuation_token_ids)
    _check_ids("continuation_token_ids", token_ids, offer)
    if len(token_ids) > limit:
        raise InvalidValue("continuation_token_ids", f"{len(token_ids)} tokens; max_output_tokens is {limit}")
    room = offer.target.info.max_context_tokens - len(prompt)
    if len(token_ids) > room:
        raise ContextTooLong("continuation_token_ids", f"{len(token_ids)} tokens; the context has room for {room}")
    return token_ids


def _max_output_tokens(stop: pb.StopConditions, offer: Offer) -> int:
    limit = offer.target.info.max_context_tokens
    if not 1 <= stop.max_output_tokens <= limit:
        raise InvalidValue("stop.max_output_tokens", f"required, 1 to {limit}, got {stop.max_output_tokens}")
    return stop.max_output_tokens


def _stop_tokens(stop: pb.StopConditions, offer: Offer) -> frozenset[int]:
    if len(stop.token_ids) > MAX_STOP_TOKENS:
        raise InvalidValue("stop.token_ids", f"at most {MAX_STOP_TOKENS}, got {len(stop.token_ids)}")
    _check_ids("stop.token_ids", stop.token_ids, offer)
    return frozenset(stop.token_ids) | (frozenset() if stop.ignore_eos else offer.target.eos_token_ids)


def _stop_strings(stop: pb.StopConditions, offer: Offer) -> tuple[str, ...]:
    if stop.strings and offer.text is None:
        raise UnsupportedOption("stop.strings", "this target has no tokenizer")
    if len(stop.strings) > MAX_STOP_STRINGS:
        raise InvalidValue("stop.strings", f"at most {MAX_STOP_STRINGS}, got {len(stop.strings)}")
    for index, string in enumerate(stop.strings):
        if not 1 <= len(string.encode()) <= MAX_STOP_STRING_BYTES:
            raise InvalidValue(f"stop.strings[{index}]", f"1 to {MAX_STOP_STRING_BYTES} bytes")
    return tuple(stop.strings)


def _logprobs(output: pb.OutputOptions) -> int | None:
    if not output.HasField("logprobs"):
        return None
    if output.logprobs > MAX_LOGPROBS:
        raise InvalidValue("output.logprobs", f"at most {MAX_LOGPROBS}, got {output.logprobs}")
    return output.logprobs


def _chunk_interval(output: pb.OutputOptions) -> float:
    interval = output.min_chunk_interval
    seconds: float = interval.seconds + interval.nanos / 1e9
    # Opposite signs are no Duration, whatever they add up to.
    valid = interval.seconds >= 0 and 0 <= interval.nanos < 1_000_000_000 and seconds <= MAX_CHUNK_INTERVAL_SECONDS
    if not valid:
        raise InvalidValue("output.min_chunk_interval", f"0 to {MAX_CHUNK_INTERVAL_SECONDS:.0f} seconds")
    return seconds


def _priority(priority: int, caller: Caller) -> int:
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidValue("priority", f"-{MAX_PRIORITY} to {MAX_PRIORITY}, got {priority}")
    return min(priority, caller.max_priority)


def _workload(workload: str, offer: Offer) -> str:
    if workload and workload not in offer.workloads:
        raise InvalidValue("workload", "not one of the configured names")
    return workload

"""A `GenerateRequest` to a plan in which every field has been checked; nothing of a request is ignored."""

import re
import secrets
from dataclasses import dataclass

from specmesh.router.arms import DraftScope
from specmesh.router.callers import DEBUG, Caller
from specmesh.router.offer import Offer
from specmesh.router.prompt import check_ids, read_continuation, read_prompt
from specmesh.runtime.errors import InvalidValue, UnknownModel, UnsupportedOption
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
MAX_ARMS = 64
MAX_ARM_CHARACTERS = 128
MAX_POOLS_NAMED = 16
MAX_CHUNK_INTERVAL_SECONDS = 60.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


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
    prompt = read_prompt(request, offer)
    continuation = read_continuation(request, prompt, limit, offer)
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
    if len(options.arms) > MAX_ARMS:
        raise InvalidValue("draft.arms", f"at most {MAX_ARMS}, got {len(options.arms)}")
    # A pool that the caller may not reach is unknown to it: the answer says nothing about what others use.
    pool_of = {pool: pool for pool in caller.pools}
    pool_of |= {arm.name: arm.pool for arm in offer.arms if arm.pool in caller.pools}
    for index, name in enumerate(options.arms):
        if len(name) > MAX_ARM_CHARACTERS:
            raise InvalidValue(f"draft.arms[{index}]", f"a name has at most {MAX_ARM_CHARACTERS} characters")
        if name not in pool_of:
            raise InvalidValue(f"draft.arms[{index}]", f"no such arm or pool; {_there(caller.pools)}")
    return frozenset(pool_of[name] for name in options.arms), frozenset(options.arms)


def _there(pools: frozenset[str]) -> str:
    """Digests of pools are for operators, and an error has a bound."""
    names, more = sorted(pools)[:MAX_POOLS_NAMED], len(pools) - MAX_POOLS_NAMED
    if not names:
        return "there is none"
    return f"there are the pools {', '.join(names)}{f' and {more} more' if more > 0 else ''}"


def _max_output_tokens(stop: pb.StopConditions, offer: Offer) -> int:
    limit = offer.target.info.max_context_tokens
    if not 1 <= stop.max_output_tokens <= limit:
        raise InvalidValue("stop.max_output_tokens", f"required, 1 to {limit}, got {stop.max_output_tokens}")
    return stop.max_output_tokens


def _stop_tokens(stop: pb.StopConditions, offer: Offer) -> frozenset[int]:
    if len(stop.token_ids) > MAX_STOP_TOKENS:
        raise InvalidValue("stop.token_ids", f"at most {MAX_STOP_TOKENS}, got {len(stop.token_ids)}")
    check_ids("stop.token_ids", stop.token_ids, offer)
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

"""The mesh's own words as plain objects (specification 0).

`specmesh.runtime.wire` turns them into protobuf and back.
"""

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from specmesh.runtime.errors import InvalidValue


class Word(Enum):
    """One of a closed set of words. There is one object for each, so it hashes as that: `Enum` does so by its name."""

    __hash__ = object.__hash__


class Rule(Word):
    """How a block is verified (specification 1.3). At temperature 0 all three are the same."""

    BLOCK = "block"
    TOKEN = "token"
    COUPLED = "coupled"


class FinishReason(Word):
    """Why a session's text ended."""

    STOP = "stop"
    LENGTH = "length"


class BlockRefusal(Word):
    """What was wrong with a block. A refused block is as if nothing had been drafted."""

    MALFORMED_ROW = "malformed_row"
    TOKEN_OUT_OF_VOCABULARY = "token_out_of_vocabulary"
    TOKEN_OUT_OF_ROW = "token_out_of_row"
    RESAMPLE_MISMATCH = "resample_mismatch"
    TOO_LONG = "too_long"


class DraftEndReason(Word):
    """Why a draft's block has the length it has."""

    LENGTH = "length"
    EOS = "eos"
    CONFIDENCE = "confidence"
    DEADLINE = "deadline"
    NON_FINITE = "non_finite"
    CONTEXT = "context"


class ContextSource(Word):
    """Where a draft's context came from."""

    COLD = "cold"
    WARM = "warm"
    PREDICTED = "predicted"


class ArmState(Word):
    """State of an arm as the router sees it."""

    READY = "ready"
    COOLING = "cooling"
    PROBING = "probing"
    INCOMPATIBLE = "incompatible"
    QUARANTINED = "quarantined"
    DRAINING = "draining"


class FallbackReason(Word):
    """Why a step went without a draft."""

    POLICY = "policy"
    TIMEOUT = "timeout"
    INVALID_BLOCK = "invalid_block"
    NO_ARM = "no_arm"
    FORBIDDEN = "forbidden"


class EntryErrorReason(Word):
    """Why one entry of a frame failed; `entry_error.proto` says of each whether a retry can help."""

    INVALID_VALUE = "invalid_value"
    UNKNOWN_SESSION = "unknown_session"
    CONTEXT_MISMATCH = "context_mismatch"
    NON_FINITE_LOGITS = "non_finite_logits"
    OVERLOADED = "overloaded"
    DRAINING = "draining"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"
    CONTEXT_TOO_LONG = "context_too_long"


MAX_LOGIT_BIAS = 1024
REPETITION_PENALTIES = 1e-3, 1e3
MAX_ADDED = 1e6
"""Most that a bias or a penalty per token adds to a logit or takes from it: beyond, float32 would overflow."""
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 256
MAX_STOP_TOKENS = 64


def _check_added(name: str, value: float) -> None:
    if not abs(value) <= MAX_ADDED:
        raise InvalidValue(name, f"must be within {MAX_ADDED:g} of 0, got {value}")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request samples; validated on construction, so an instance is always servable.

    Raises `InvalidValue` naming the field (`sampling.temperature`, ...).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no law is defined for."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidValue("sampling.temperature", f"must be finite and >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InvalidValue("sampling.top_p", f"must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise InvalidValue("sampling.top_k", f"must be >= 0 (0 is off), got {self.top_k}")
        if not 0 <= self.min_p <= 1:
            raise InvalidValue("sampling.min_p", f"must be in [0, 1], got {self.min_p}")
        least, most = REPETITION_PENALTIES
        if not least <= self.repetition_penalty <= most:
            message = f"must be in [{least:g}, {most:g}] (1 is off), got {self.repetition_penalty}"
            raise InvalidValue("sampling.repetition_penalty", message)
        for name in ("presence_penalty", "frequency_penalty"):
            _check_added(f"sampling.{name}", getattr(self, name))
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidValue("sampling.logit_bias", f"at most {MAX_LOGIT_BIAS} entries, got {len(self.logit_bias)}")
        for _, bias in self.logit_bias:
            _check_added("sampling.logit_bias", bias)

    @property
    def greedy(self) -> bool:
        """Temperature 0: the law is a point mass on the arg-max, lowest id on a tie."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Whether the law depends on which tokens the context holds."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


class Outcome(NamedTuple):
    """What a step ended in: how many drafted tokens were kept, and the token after them."""

    position: int
    num_accepted: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens proposed for one step. `rows` is empty when every row is one-hot on its token.

    `after`: conditional, to be taken if the step in flight ends so. `run_count`: emit so many plain tokens, an answer
    for each, without being asked for each; 0 is off.
    """

    position: int
    token_ids: tuple[int, ...] = ()
    rows: tuple[bytes, ...] = ()
    after: Outcome | None = None
    run_count: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log of a token's target probability, and of the n likeliest (id, log-probability)."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """All a verifier needs to hold a session; `context` longer than `prompt_length` resumes one."""

    session_id: int
    peer: str
    context: tuple[int, ...]
    prompt_length: int
    sampling: Sampling
    rule: Rule
    verify_key: int
    draft_key: int
    max_output_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    lease_ms: int = 30_000
    logprobs: int | None = None
    cache_salt: bytes = b""
    priority: int = 0


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class VerifyTiming:
    """Nanoseconds by part of a step in the verifier."""

    queue_ns: int = 0
    forward_ns: int = 0
    verify_ns: int = 0
    total_ns: int = 0


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class StepResult:
    """A verified step. `num_drafted` counts what was verified up to the boundary that ended the text, if one did."""

    session_id: int
    position: int
    token_ids: tuple[int, ...]
    num_accepted: int
    num_drafted: int
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    block_refusal: BlockRefusal | None = None
    timing: VerifyTiming = field(default_factory=VerifyTiming)
    batch_size: int = 1

    @property
    def reward(self) -> float | None:
        """accepted / drafted, as in the paper; None at length 0."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None


@dataclass(frozen=True, slots=True)
class EntryFailure:
    """The answer to an entry that failed. The message never holds text or token ids of a request."""

    session_id: int
    position: int
    reason: EntryErrorReason
    message: str


@dataclass(frozen=True, slots=True)
class DraftAsk:
    """One entry of a draft request: catch up to `position`, then propose `block_length` tokens."""

    session_id: int
    position: int
    context_hash: int
    delta_token_ids: tuple[int, ...]
    block_length: int
    sampling: Sampling
    rule: Rule
    draft_key: int
    max_row: int = 0
    num_conditional: int = 0
    block_deadline_ms: int = 0
    want_scores: bool = False


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What a draft or a verifier says of itself at registration."""

    contract_version: int
    model_digest: str
    tokenizer_digest: str
    vocabulary_size: int
    max_context_tokens: int
    kind: str
    model_name: str
    build: str
    vocabulary_hashes: bytes = b""
    max_block_length: int = 0
    one_hot: bool = False
    """Of a draft: it never sends rows."""
    max_run_tokens: int = 0
    """Of a verifier: the longest run it takes."""

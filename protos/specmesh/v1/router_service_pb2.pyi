from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerificationRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFICATION_RULE_UNSPECIFIED: _ClassVar[VerificationRule]
    VERIFICATION_RULE_BLOCK: _ClassVar[VerificationRule]
    VERIFICATION_RULE_TOKEN: _ClassVar[VerificationRule]
    VERIFICATION_RULE_COUPLED: _ClassVar[VerificationRule]

class DraftMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_MODE_UNSPECIFIED: _ClassVar[DraftMode]
    DRAFT_MODE_AUTO: _ClassVar[DraftMode]
    DRAFT_MODE_OFF: _ClassVar[DraftMode]
    DRAFT_MODE_ONLY: _ClassVar[DraftMode]

class FallbackReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FALLBACK_REASON_UNSPECIFIED: _ClassVar[FallbackReason]
    FALLBACK_REASON_POLICY: _ClassVar[FallbackReason]
    FALLBACK_REASON_TIMEOUT: _ClassVar[FallbackReason]
    FALLBACK_REASON_INVALID_BLOCK: _ClassVar[FallbackReason]
    FALLBACK_REASON_NO_ARM: _ClassVar[FallbackReason]
    FALLBACK_REASON_FORBIDDEN: _ClassVar[FallbackReason]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class ArmState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARM_STATE_UNSPECIFIED: _ClassVar[ArmState]
    ARM_STATE_READY: _ClassVar[ArmState]
    ARM_STATE_COOLING: _ClassVar[ArmState]
    ARM_STATE_PROBING: _ClassVar[ArmState]
    ARM_STATE_INCOMPATIBLE: _ClassVar[ArmState]
    ARM_STATE_QUARANTINED: _ClassVar[ArmState]
    ARM_STATE_DRAINING: _ClassVar[ArmState]

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_VALUE: _ClassVar[ErrorReason]
    ERROR_REASON_UNSUPPORTED_OPTION: _ClassVar[ErrorReason]
    ERROR_REASON_CONTEXT_TOO_LONG: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_MODEL: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_QUOTA: _ClassVar[ErrorReason]
    ERROR_REASON_NO_VERIFIER: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_ALLOWED: _ClassVar[ErrorReason]
    ERROR_REASON_NON_FINITE_LOGITS: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_PASSED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_READ: _ClassVar[ErrorReason]
VERIFICATION_RULE_UNSPECIFIED: VerificationRule
VERIFICATION_RULE_BLOCK: VerificationRule
VERIFICATION_RULE_TOKEN: VerificationRule
VERIFICATION_RULE_COUPLED: VerificationRule
DRAFT_MODE_UNSPECIFIED: DraftMode
DRAFT_MODE_AUTO: DraftMode
DRAFT_MODE_OFF: DraftMode
DRAFT_MODE_ONLY: DraftMode
FALLBACK_REASON_UNSPECIFIED: FallbackReason
FALLBACK_REASON_POLICY: FallbackReason
FALLBACK_REASON_TIMEOUT: FallbackReason
FALLBACK_REASON_INVALID_BLOCK: FallbackReason
FALLBACK_REASON_NO_ARM: FallbackReason
FALLBACK_REASON_FORBIDDEN: FallbackReason
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
ARM_STATE_UNSPECIFIED: ArmState
ARM_STATE_READY: ArmState
ARM_STATE_COOLING: ArmState
ARM_STATE_PROBING: ArmState
ARM_STATE_INCOMPATIBLE: ArmState
ARM_STATE_QUARANTINED: ArmState
ARM_STATE_DRAINING: ArmState
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_UNKNOWN_FIELD: ErrorReason
ERROR_REASON_INVALID_VALUE: ErrorReason
ERROR_REASON_UNSUPPORTED_OPTION: ErrorReason
ERROR_REASON_CONTEXT_TOO_LONG: ErrorReason
ERROR_REASON_UNKNOWN_MODEL: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_QUOTA: ErrorReason
ERROR_REASON_NO_VERIFIER: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_NOT_ALLOWED: ErrorReason
ERROR_REASON_NON_FINITE_LOGITS: ErrorReason
ERROR_REASON_DEADLINE_PASSED: ErrorReason
ERROR_REASON_NOT_READ: ErrorReason

class GenerateRequest(_message.Message):
    __slots__ = ("model", "request_id", "text", "tokens", "chat", "continuation_token_ids", "sampling", "stop", "draft", "output", "priority", "workload")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    model: str
    request_id: str
    text: str
    tokens: TokenIds
    chat: ChatInput
    continuation_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParams
    stop: StopConditions
    draft: DraftOptions
    output: OutputOptions
    priority: int
    workload: str
    def __init__(self, model: _Optional[str] = ..., request_id: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ..., continuation_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., stop: _Optional[_Union[StopConditions, _Mapping]] = ..., draft: _Optional[_Union[DraftOptions, _Mapping]] = ..., output: _Optional[_Union[OutputOptions, _Mapping]] = ..., priority: _Optional[int] = ..., workload: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ChatInput(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "rule")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    rule: VerificationRule
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., rule: _Optional[_Union[VerificationRule, str]] = ...) -> None: ...

class StopConditions(_message.Message):
    __slots__ = ("max_output_tokens", "strings", "token_ids", "ignore_eos")
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    max_output_tokens: int
    strings: _containers.RepeatedScalarFieldContainer[str]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    def __init__(self, max_output_tokens: _Optional[int] = ..., strings: _Optional[_Iterable[str]] = ..., token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ...) -> None: ...

class DraftOptions(_message.Message):
    __slots__ = ("mode", "arms", "max_block_length")
    MODE_FIELD_NUMBER: _ClassVar[int]
    ARMS_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    mode: DraftMode
    arms: _containers.RepeatedScalarFieldContainer[str]
    max_block_length: int
    def __init__(self, mode: _Optional[_Union[DraftMode, str]] = ..., arms: _Optional[_Iterable[str]] = ..., max_block_length: _Optional[int] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("logprobs", "min_chunk_interval", "unary", "step_reports")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_CHUNK_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    UNARY_FIELD_NUMBER: _ClassVar[int]
    STEP_REPORTS_FIELD_NUMBER: _ClassVar[int]
    logprobs: int
    min_chunk_interval: _duration_pb2.Duration
    unary: bool
    step_reports: bool
    def __init__(self, logprobs: _Optional[int] = ..., min_chunk_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., unary: bool = ..., step_reports: bool = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "delta", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: GenerationStarted
    delta: OutputDelta
    finished: GenerationFinished
    def __init__(self, started: _Optional[_Union[GenerationStarted, _Mapping]] = ..., delta: _Optional[_Union[OutputDelta, _Mapping]] = ..., finished: _Optional[_Union[GenerationFinished, _Mapping]] = ...) -> None: ...

class GenerationStarted(_message.Message):
    __slots__ = ("request_id", "model", "model_fingerprint", "seed", "rule")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_fingerprint: str
    seed: int
    rule: VerificationRule
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., seed: _Optional[int] = ..., rule: _Optional[_Union[VerificationRule, str]] = ...) -> None: ...

class OutputDelta(_message.Message):
    __slots__ = ("output_offset", "token_ids", "text", "logprobs", "steps")
    OUTPUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    output_offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    steps: _containers.RepeatedCompositeFieldContainer[StepReport]
    def __init__(self, output_offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[StepReport, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("logprob", "top")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopToken]
    def __init__(self, logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopToken, _Mapping]]] = ...) -> None: ...

class TopToken(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("arm", "drafted_count", "accepted_count", "emitted_count", "predicted", "fallback_reason", "timing", "reward")
    ARM_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    EMITTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    arm: str
    drafted_count: int
    accepted_count: int
    emitted_count: int
    predicted: bool
    fallback_reason: FallbackReason
    timing: StepTiming
    reward: float
    def __init__(self, arm: _Optional[str] = ..., drafted_count: _Optional[int] = ..., accepted_count: _Optional[int] = ..., emitted_count: _Optional[int] = ..., predicted: bool = ..., fallback_reason: _Optional[_Union[FallbackReason, str]] = ..., timing: _Optional[_Union[StepTiming, _Mapping]] = ..., reward: _Optional[float] = ...) -> None: ...

class StepTiming(_message.Message):
    __slots__ = ("total", "draft", "network", "queue", "forward", "verify", "router")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    total: _duration_pb2.Duration
    draft: _duration_pb2.Duration
    network: _duration_pb2.Duration
    queue: _duration_pb2.Duration
    forward: _duration_pb2.Duration
    verify: _duration_pb2.Duration
    router: _duration_pb2.Duration
    def __init__(self, total: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., draft: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., network: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., forward: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., verify: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., router: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GenerationFinished(_message.Message):
    __slots__ = ("finish_reason", "stop_matched", "usage")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_MATCHED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    finish_reason: FinishReason
    stop_matched: str
    usage: Usage
    def __init__(self, finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop_matched: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_token_count", "cached_input_token_count", "output_token_count", "drafted_token_count", "accepted_token_count", "step_count", "pools")
    INPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    input_token_count: int
    cached_input_token_count: int
    output_token_count: int
    drafted_token_count: int
    accepted_token_count: int
    step_count: int
    pools: _containers.RepeatedCompositeFieldContainer[PoolUsage]
    def __init__(self, input_token_count: _Optional[int] = ..., cached_input_token_count: _Optional[int] = ..., output_token_count: _Optional[int] = ..., drafted_token_count: _Optional[int] = ..., accepted_token_count: _Optional[int] = ..., step_count: _Optional[int] = ..., pools: _Optional[_Iterable[_Union[PoolUsage, _Mapping]]] = ...) -> None: ...

class PoolUsage(_message.Message):
    __slots__ = ("pool", "device_time")
    POOL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TIME_FIELD_NUMBER: _ClassVar[int]
    pool: str
    device_time: _duration_pb2.Duration
    def __init__(self, pool: _Optional[str] = ..., device_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "fingerprint", "max_context_tokens", "vocabulary_size", "features")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    max_context_tokens: int
    vocabulary_size: int
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., max_context_tokens: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class ListDraftsRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ListDraftsResponse(_message.Message):
    __slots__ = ("arms",)
    ARMS_FIELD_NUMBER: _ClassVar[int]
    arms: _containers.RepeatedCompositeFieldContainer[DraftArm]
    def __init__(self, arms: _Optional[_Iterable[_Union[DraftArm, _Mapping]]] = ...) -> None: ...

class DraftArm(_message.Message):
    __slots__ = ("name", "fingerprint", "state", "reason", "ready_replica_count", "acceptance", "block_latency", "step_share")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    READY_REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LATENCY_FIELD_NUMBER: _ClassVar[int]
    STEP_SHARE_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    state: ArmState
    reason: str
    ready_replica_count: int
    acceptance: float
    block_latency: _duration_pb2.Duration
    step_share: float
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., state: _Optional[_Union[ArmState, str]] = ..., reason: _Optional[str] = ..., ready_replica_count: _Optional[int] = ..., acceptance: _Optional[float] = ..., block_latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., step_share: _Optional[float] = ...) -> None: ...

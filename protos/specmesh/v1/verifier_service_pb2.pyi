from specmesh.v1 import draft_service_pb2 as _draft_service_pb2
from specmesh.v1 import entry_error_pb2 as _entry_error_pb2
from specmesh.v1 import router_service_pb2 as _router_service_pb2
from specmesh.v1 import service_info_pb2 as _service_info_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlockRefusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_REFUSAL_UNSPECIFIED: _ClassVar[BlockRefusal]
    BLOCK_REFUSAL_MALFORMED_ROW: _ClassVar[BlockRefusal]
    BLOCK_REFUSAL_TOKEN_OUT_OF_VOCABULARY: _ClassVar[BlockRefusal]
    BLOCK_REFUSAL_TOKEN_OUT_OF_ROW: _ClassVar[BlockRefusal]
    BLOCK_REFUSAL_RESAMPLE_MISMATCH: _ClassVar[BlockRefusal]
    BLOCK_REFUSAL_TOO_LONG: _ClassVar[BlockRefusal]
BLOCK_REFUSAL_UNSPECIFIED: BlockRefusal
BLOCK_REFUSAL_MALFORMED_ROW: BlockRefusal
BLOCK_REFUSAL_TOKEN_OUT_OF_VOCABULARY: BlockRefusal
BLOCK_REFUSAL_TOKEN_OUT_OF_ROW: BlockRefusal
BLOCK_REFUSAL_RESAMPLE_MISMATCH: BlockRefusal
BLOCK_REFUSAL_TOO_LONG: BlockRefusal

class VerifierServiceOpenRequest(_message.Message):
    __slots__ = ("header", "token_ids")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    header: VerifyOpenHeader
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[VerifyOpenHeader, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class VerifyOpenHeader(_message.Message):
    __slots__ = ("session_id", "peer", "context_length", "prompt_length", "sampling", "rule", "verify_key", "draft_key", "max_output_tokens", "stop_token_ids", "lease_ms", "logprobs", "cache_salt", "priority", "remaining_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    VERIFY_KEY_FIELD_NUMBER: _ClassVar[int]
    DRAFT_KEY_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    peer: str
    context_length: int
    prompt_length: int
    sampling: _router_service_pb2.SamplingParams
    rule: _router_service_pb2.VerificationRule
    verify_key: int
    draft_key: int
    max_output_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    lease_ms: int
    logprobs: int
    cache_salt: bytes
    priority: int
    remaining_ms: int
    def __init__(self, session_id: _Optional[int] = ..., peer: _Optional[str] = ..., context_length: _Optional[int] = ..., prompt_length: _Optional[int] = ..., sampling: _Optional[_Union[_router_service_pb2.SamplingParams, _Mapping]] = ..., rule: _Optional[_Union[_router_service_pb2.VerificationRule, str]] = ..., verify_key: _Optional[int] = ..., draft_key: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., lease_ms: _Optional[int] = ..., logprobs: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., priority: _Optional[int] = ..., remaining_ms: _Optional[int] = ...) -> None: ...

class VerifierServiceOpenResponse(_message.Message):
    __slots__ = ("cached_token_count",)
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    cached_token_count: int
    def __init__(self, cached_token_count: _Optional[int] = ...) -> None: ...

class VerifierServiceGetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifierServiceGetTokenizerResponse(_message.Message):
    __slots__ = ("tokenizer_json", "chat_template", "tokenizer_digest", "eos_token_ids", "special_tokens")
    class SpecialTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokenizer_json: bytes
    chat_template: str
    tokenizer_digest: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    special_tokens: _containers.ScalarMap[str, str]
    def __init__(self, tokenizer_json: _Optional[bytes] = ..., chat_template: _Optional[str] = ..., tokenizer_digest: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., special_tokens: _Optional[_Mapping[str, str]] = ...) -> None: ...

class VerifierServiceGetInfoRequest(_message.Message):
    __slots__ = ("want_vocabulary",)
    WANT_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    want_vocabulary: bool
    def __init__(self, want_vocabulary: bool = ...) -> None: ...

class VerifierServiceGetInfoResponse(_message.Message):
    __slots__ = ("info", "eos_token_ids", "session_count", "free_block_count", "block_count")
    INFO_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    info: _service_info_pb2.ServiceInfo
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    session_count: int
    free_block_count: int
    block_count: int
    def __init__(self, info: _Optional[_Union[_service_info_pb2.ServiceInfo, _Mapping]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., session_count: _Optional[int] = ..., free_block_count: _Optional[int] = ..., block_count: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[VerifyRequestEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[VerifyRequestEntry, _Mapping]]] = ...) -> None: ...

class VerifyRequestEntry(_message.Message):
    __slots__ = ("session_id", "traceparent", "remaining_ms", "position", "token_ids", "rows", "after", "run_count", "close")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    RUN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    traceparent: str
    remaining_ms: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    after: _draft_service_pb2.StepOutcome
    run_count: int
    close: bool
    def __init__(self, session_id: _Optional[int] = ..., traceparent: _Optional[str] = ..., remaining_ms: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[bytes]] = ..., after: _Optional[_Union[_draft_service_pb2.StepOutcome, _Mapping]] = ..., run_count: _Optional[int] = ..., close: bool = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("entries", "draining")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[VerifyResponseEntry]
    draining: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[VerifyResponseEntry, _Mapping]]] = ..., draining: bool = ...) -> None: ...

class VerifyResponseEntry(_message.Message):
    __slots__ = ("session_id", "position", "token_ids", "accepted_count", "drafted_count", "reward", "logprobs", "finish_reason", "stop_token_id", "block_refusal", "timing", "batch_size", "error")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    accepted_count: int
    drafted_count: int
    reward: float
    logprobs: _containers.RepeatedCompositeFieldContainer[_router_service_pb2.TokenLogprob]
    finish_reason: _router_service_pb2.FinishReason
    stop_token_id: int
    block_refusal: BlockRefusal
    timing: VerifyTiming
    batch_size: int
    error: _entry_error_pb2.EntryError
    def __init__(self, session_id: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., accepted_count: _Optional[int] = ..., drafted_count: _Optional[int] = ..., reward: _Optional[float] = ..., logprobs: _Optional[_Iterable[_Union[_router_service_pb2.TokenLogprob, _Mapping]]] = ..., finish_reason: _Optional[_Union[_router_service_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., block_refusal: _Optional[_Union[BlockRefusal, str]] = ..., timing: _Optional[_Union[VerifyTiming, _Mapping]] = ..., batch_size: _Optional[int] = ..., error: _Optional[_Union[_entry_error_pb2.EntryError, _Mapping]] = ...) -> None: ...

class VerifyTiming(_message.Message):
    __slots__ = ("queue_ns", "forward_ns", "verify_ns", "total_ns")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_NS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    forward_ns: int
    verify_ns: int
    total_ns: int
    def __init__(self, queue_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., verify_ns: _Optional[int] = ..., total_ns: _Optional[int] = ...) -> None: ...

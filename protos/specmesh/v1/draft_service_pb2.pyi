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

class DraftEndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_END_REASON_UNSPECIFIED: _ClassVar[DraftEndReason]
    DRAFT_END_REASON_LENGTH: _ClassVar[DraftEndReason]
    DRAFT_END_REASON_EOS: _ClassVar[DraftEndReason]
    DRAFT_END_REASON_CONFIDENCE: _ClassVar[DraftEndReason]
    DRAFT_END_REASON_DEADLINE: _ClassVar[DraftEndReason]
    DRAFT_END_REASON_NON_FINITE: _ClassVar[DraftEndReason]
    DRAFT_END_REASON_CONTEXT: _ClassVar[DraftEndReason]

class ContextSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTEXT_SOURCE_UNSPECIFIED: _ClassVar[ContextSource]
    CONTEXT_SOURCE_COLD: _ClassVar[ContextSource]
    CONTEXT_SOURCE_WARM: _ClassVar[ContextSource]
    CONTEXT_SOURCE_PREDICTED: _ClassVar[ContextSource]
DRAFT_END_REASON_UNSPECIFIED: DraftEndReason
DRAFT_END_REASON_LENGTH: DraftEndReason
DRAFT_END_REASON_EOS: DraftEndReason
DRAFT_END_REASON_CONFIDENCE: DraftEndReason
DRAFT_END_REASON_DEADLINE: DraftEndReason
DRAFT_END_REASON_NON_FINITE: DraftEndReason
DRAFT_END_REASON_CONTEXT: DraftEndReason
CONTEXT_SOURCE_UNSPECIFIED: ContextSource
CONTEXT_SOURCE_COLD: ContextSource
CONTEXT_SOURCE_WARM: ContextSource
CONTEXT_SOURCE_PREDICTED: ContextSource

class DraftServiceOpenRequest(_message.Message):
    __slots__ = ("header", "token_ids")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    header: DraftOpenHeader
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[DraftOpenHeader, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftOpenHeader(_message.Message):
    __slots__ = ("session_id", "start", "length")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    start: int
    length: int
    def __init__(self, session_id: _Optional[int] = ..., start: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class DraftServiceOpenResponse(_message.Message):
    __slots__ = ("have_length",)
    HAVE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    have_length: int
    def __init__(self, have_length: _Optional[int] = ...) -> None: ...

class DraftServiceGetInfoRequest(_message.Message):
    __slots__ = ("want_vocabulary",)
    WANT_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    want_vocabulary: bool
    def __init__(self, want_vocabulary: bool = ...) -> None: ...

class DraftServiceGetInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _service_info_pb2.ServiceInfo
    def __init__(self, info: _Optional[_Union[_service_info_pb2.ServiceInfo, _Mapping]] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DraftRequestEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[DraftRequestEntry, _Mapping]]] = ...) -> None: ...

class DraftRequestEntry(_message.Message):
    __slots__ = ("session_id", "traceparent", "remaining_ms", "position", "context_hash", "delta_token_ids", "block_length", "conditional_count", "max_row", "sampling", "rule", "draft_key", "block_deadline_ms", "want_scores", "close")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_HASH_FIELD_NUMBER: _ClassVar[int]
    DELTA_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CONDITIONAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_ROW_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_KEY_FIELD_NUMBER: _ClassVar[int]
    BLOCK_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    WANT_SCORES_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    traceparent: str
    remaining_ms: int
    position: int
    context_hash: int
    delta_token_ids: _containers.RepeatedScalarFieldContainer[int]
    block_length: int
    conditional_count: int
    max_row: int
    sampling: _router_service_pb2.SamplingParams
    rule: _router_service_pb2.VerificationRule
    draft_key: int
    block_deadline_ms: int
    want_scores: bool
    close: bool
    def __init__(self, session_id: _Optional[int] = ..., traceparent: _Optional[str] = ..., remaining_ms: _Optional[int] = ..., position: _Optional[int] = ..., context_hash: _Optional[int] = ..., delta_token_ids: _Optional[_Iterable[int]] = ..., block_length: _Optional[int] = ..., conditional_count: _Optional[int] = ..., max_row: _Optional[int] = ..., sampling: _Optional[_Union[_router_service_pb2.SamplingParams, _Mapping]] = ..., rule: _Optional[_Union[_router_service_pb2.VerificationRule, str]] = ..., draft_key: _Optional[int] = ..., block_deadline_ms: _Optional[int] = ..., want_scores: bool = ..., close: bool = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("entries", "draining")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DraftResponseEntry]
    draining: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[DraftResponseEntry, _Mapping]]] = ..., draining: bool = ...) -> None: ...

class DraftResponseEntry(_message.Message):
    __slots__ = ("session_id", "position", "tokens", "conditional", "end", "context_needed", "error", "handle", "token_id", "row")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONAL_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_NEEDED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    position: int
    tokens: DraftedTokens
    conditional: ConditionalBlock
    end: DraftEnd
    context_needed: ContextNeeded
    error: _entry_error_pb2.EntryError
    handle: int
    token_id: int
    row: bytes
    def __init__(self, session_id: _Optional[int] = ..., position: _Optional[int] = ..., tokens: _Optional[_Union[DraftedTokens, _Mapping]] = ..., conditional: _Optional[_Union[ConditionalBlock, _Mapping]] = ..., end: _Optional[_Union[DraftEnd, _Mapping]] = ..., context_needed: _Optional[_Union[ContextNeeded, _Mapping]] = ..., error: _Optional[_Union[_entry_error_pb2.EntryError, _Mapping]] = ..., handle: _Optional[int] = ..., token_id: _Optional[int] = ..., row: _Optional[bytes] = ...) -> None: ...

class DraftedTokens(_message.Message):
    __slots__ = ("offset", "token_ids", "rows", "draft_logprobs")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    draft_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[bytes]] = ..., draft_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class StepOutcome(_message.Message):
    __slots__ = ("position", "accepted_count", "token_id")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    position: int
    accepted_count: int
    token_id: int
    def __init__(self, position: _Optional[int] = ..., accepted_count: _Optional[int] = ..., token_id: _Optional[int] = ...) -> None: ...

class ConditionalBlock(_message.Message):
    __slots__ = ("after", "tokens")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    after: StepOutcome
    tokens: DraftedTokens
    def __init__(self, after: _Optional[_Union[StepOutcome, _Mapping]] = ..., tokens: _Optional[_Union[DraftedTokens, _Mapping]] = ...) -> None: ...

class DraftEnd(_message.Message):
    __slots__ = ("drafted_count", "reason", "context_source", "queue_ns", "compute_ns", "batch_size", "delta_logprobs", "delta_guessed")
    DRAFTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    DELTA_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DELTA_GUESSED_FIELD_NUMBER: _ClassVar[int]
    drafted_count: int
    reason: DraftEndReason
    context_source: ContextSource
    queue_ns: int
    compute_ns: int
    batch_size: int
    delta_logprobs: _containers.RepeatedScalarFieldContainer[float]
    delta_guessed: bytes
    def __init__(self, drafted_count: _Optional[int] = ..., reason: _Optional[_Union[DraftEndReason, str]] = ..., context_source: _Optional[_Union[ContextSource, str]] = ..., queue_ns: _Optional[int] = ..., compute_ns: _Optional[int] = ..., batch_size: _Optional[int] = ..., delta_logprobs: _Optional[_Iterable[float]] = ..., delta_guessed: _Optional[bytes] = ...) -> None: ...

class ContextNeeded(_message.Message):
    __slots__ = ("have_length",)
    HAVE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    have_length: int
    def __init__(self, have_length: _Optional[int] = ...) -> None: ...

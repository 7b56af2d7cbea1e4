from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_ERROR_REASON_UNSPECIFIED: _ClassVar[EntryErrorReason]
    ENTRY_ERROR_REASON_INVALID_VALUE: _ClassVar[EntryErrorReason]
    ENTRY_ERROR_REASON_UNKNOWN_SESSION: _ClassVar[EntryErrorReason]
    ENTRY_ERROR_REASON_CONTEXT_MISMATCH: _ClassVar[EntryErrorReason]
    ENTRY_ERROR_REASON_NON_FINITE_LOGITS: _ClassVar[EntryErrorReason]
    ENTRY_ERROR_REASON_OVERLOADED: _ClassVar[EntryErrorReason]
    ENTRY_ERROR_REASON_DRAINING: _ClassVar[EntryErrorReason]
    ENTRY_ERROR_REASON_DEADLINE_EXCEEDED: _ClassVar[EntryErrorReason]
    ENTRY_ERROR_REASON_INTERNAL: _ClassVar[EntryErrorReason]
    ENTRY_ERROR_REASON_CONTEXT_TOO_LONG: _ClassVar[EntryErrorReason]
ENTRY_ERROR_REASON_UNSPECIFIED: EntryErrorReason
ENTRY_ERROR_REASON_INVALID_VALUE: EntryErrorReason
ENTRY_ERROR_REASON_UNKNOWN_SESSION: EntryErrorReason
ENTRY_ERROR_REASON_CONTEXT_MISMATCH: EntryErrorReason
ENTRY_ERROR_REASON_NON_FINITE_LOGITS: EntryErrorReason
ENTRY_ERROR_REASON_OVERLOADED: EntryErrorReason
ENTRY_ERROR_REASON_DRAINING: EntryErrorReason
ENTRY_ERROR_REASON_DEADLINE_EXCEEDED: EntryErrorReason
ENTRY_ERROR_REASON_INTERNAL: EntryErrorReason
ENTRY_ERROR_REASON_CONTEXT_TOO_LONG: EntryErrorReason

class EntryError(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: EntryErrorReason
    message: str
    def __init__(self, reason: _Optional[_Union[EntryErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

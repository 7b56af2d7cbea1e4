from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ServiceInfo(_message.Message):
    __slots__ = ("contract_version", "model_digest", "tokenizer_digest", "vocabulary_size", "max_context_tokens", "kind", "model_name", "build", "vocabulary_hashes", "max_block_length", "one_hot", "max_run_tokens")
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_HASHES_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ONE_HOT_FIELD_NUMBER: _ClassVar[int]
    MAX_RUN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    contract_version: int
    model_digest: str
    tokenizer_digest: str
    vocabulary_size: int
    max_context_tokens: int
    kind: str
    model_name: str
    build: str
    vocabulary_hashes: bytes
    max_block_length: int
    one_hot: bool
    max_run_tokens: int
    def __init__(self, contract_version: _Optional[int] = ..., model_digest: _Optional[str] = ..., tokenizer_digest: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., kind: _Optional[str] = ..., model_name: _Optional[str] = ..., build: _Optional[str] = ..., vocabulary_hashes: _Optional[bytes] = ..., max_block_length: _Optional[int] = ..., one_hot: bool = ..., max_run_tokens: _Optional[int] = ...) -> None: ...

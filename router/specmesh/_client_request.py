"""Requests of `specmesh.client`: options to fields, and what the wire cannot carry refused by name before sending."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from numbers import Integral
from typing import Any, Literal, Required, TypedDict, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from specmesh._client_checks import refusal
from specmesh.v1 import router_service_pb2 as pb

T = TypeVar("T")
Prompt = str | Sequence[int] | Sequence[tuple[str, str]] | Sequence[Mapping[str, str]]
PROMPTS = "a text, a list of token ids, or a list of messages: (role, text) or {'role': ..., 'content': ...}"
RAW = (bytes, bytearray, memoryview)
"""Sequences of numbers that are never meant as token ids."""


class Options(TypedDict, total=False):
    """What a generation may be given; absent ones take the defaults documented in router_service.proto."""

    max_output_tokens: Required[int]
    model: str
    request_id: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    rule: Literal["BLOCK", "TOKEN", "COUPLED"]
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    draft_mode: Literal["AUTO", "OFF", "ONLY"]
    arms: Sequence[str]
    max_block_length: int
    logprobs: int
    min_chunk_interval: float
    unary: bool
    step_reports: bool
    priority: int
    workload: str
    continuation_token_ids: Sequence[int]


# Options whose name is not the path of their field.
FIELD_PATHS: dict[str, str] = {
    **{name: f"sampling.{name}" for name in (
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "logit_bias", "seed", "rule",
    )},
    **{name: f"output.{name}" for name in ("logprobs", "min_chunk_interval", "unary", "step_reports")},
    **{name: f"stop.{name}" for name in ("max_output_tokens", "ignore_eos")},
    "stop": "stop.strings", "stop_token_ids": "stop.token_ids",
    "draft_mode": "draft.mode", "arms": "draft.arms", "max_block_length": "draft.max_block_length",
}  # fmt: skip


_WORDS: Mapping[int, str] = {
    FieldDescriptor.CPPTYPE_UINT32: "a whole number from 0 to 4294967295",
    FieldDescriptor.CPPTYPE_UINT64: "a whole number from 0 to 18446744073709551615",
    FieldDescriptor.CPPTYPE_INT32: "a whole number from -2147483648 to 2147483647",
    FieldDescriptor.CPPTYPE_FLOAT: "a finite number that float32 holds",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "a text of valid Unicode",
}
_MESSAGES = {
    "logit_bias": "a mapping of token ids, whole numbers from 0 to 4294967295, to numbers",
    "min_chunk_interval": "a number of seconds",
}


def build_request(prompt: Prompt, options: Mapping[str, Any]) -> pb.GenerateRequest:
    """A request that the wire can carry, of whatever size.

    Raises `InvalidRequest` naming the field whose value the wire cannot carry, TypeError for an option there is not.
    """
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"unknown option: {', '.join(sorted(unknown))}")
    if options.get("max_output_tokens") is None:
        raise refusal("stop.max_output_tokens", "is required")
    request = pb.GenerateRequest()
    _set_prompt(request, prompt)
    for name, value in options.items():
        _set_field(request, FIELD_PATHS.get(name, name), value)
    return request


def _set_prompt(request: pb.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        _set_field(request, "text", prompt)
    elif not isinstance(prompt, Sequence) or isinstance(prompt, RAW):
        raise refusal("input", f"the prompt must be {PROMPTS}")
    elif not prompt:
        raise refusal("input", "the prompt is empty")
    elif isinstance(prompt[0], Integral):
        _set_field(request, "tokens.ids", prompt)
    else:
        turns = [
            _guard(f"chat.messages[{i}]", "a role and a text, and nothing else", _chat_message, turn)
            for i, turn in enumerate(prompt)
        ]
        request.chat.messages.extend(turns)


def _chat_message(turn: object) -> pb.ChatMessage:
    """From (role, text), or a mapping of exactly `role` and `content`. Raises ValueError for any other form."""
    match turn:
        case {"role": str(role), "content": str(content), **more} if not more:
            return pb.ChatMessage(role=role, content=content)
        case [str(role), str(content)]:
            return pb.ChatMessage(role=role, content=content)
    raise ValueError


def _set_field(request: pb.GenerateRequest, path: str, value: object) -> None:
    *parents, name = path.split(".")
    message: Any = request
    for parent in parents:
        message = getattr(message, parent)
    descriptor = message.DESCRIPTOR.fields_by_name[name]
    _guard(path, _expected(message, descriptor), _assign, message, descriptor, value)
    held = getattr(message, name)
    for number in held.values() if name == "logit_bias" else (held,):
        if isinstance(number, float) and not math.isfinite(number):
            raise refusal(path, f"must be {_WORDS[FieldDescriptor.CPPTYPE_FLOAT]}: at most about 3.4e38")


def _assign(message: Message, descriptor: FieldDescriptor, value: object) -> None:
    name = descriptor.name
    if isinstance(value, RAW) or not _bools_where_meant(descriptor, value):
        raise TypeError
    if descriptor.enum_type is not None:
        prefix = descriptor.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        setattr(message, name, descriptor.enum_type.values_by_name[f"{prefix}{value}".upper()].number)
    elif name == "logit_bias":
        getattr(message, name).update(value)
    elif name == "min_chunk_interval":
        getattr(message, name).FromTimedelta(timedelta(seconds=float(cast(float, value))))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def _bools_where_meant(descriptor: FieldDescriptor, value: object) -> bool:
    """Python's True is a 1, and protobuf takes it for one; whoever writes it for a number means something else."""
    if descriptor.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return isinstance(value, bool)
    if isinstance(value, Mapping):
        return not any(isinstance(one, bool) for one in (*value.keys(), *value.values()))
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return not any(isinstance(one, bool) for one in (cast(Sequence[object], value) if several else (value,)))


def _guard(path: str, expected: str, act: Callable[..., T], *arguments: object) -> T:
    """Protobuf's own checks, with the name of the field and its range; its words may quote a text and are not kept."""
    try:
        return act(*arguments)
    except (KeyError, ValueError, TypeError, OverflowError, AttributeError):
        none_given = act is _assign and arguments[-1] is None
        given = ", got None; leave the option out for its default" if none_given else ""
        raise refusal(path, f"must be {expected}{given}") from None


def _expected(message: Message, descriptor: FieldDescriptor) -> str:
    """What a field takes, for people."""
    if descriptor.enum_type is not None:
        values = [value.name for value in descriptor.enum_type.values]
        prefix = values[0].removesuffix("UNSPECIFIED")
        return f"one of {', '.join(value.removeprefix(prefix) for value in values[1:])}"
    one = _WORDS.get(descriptor.cpp_type) or _MESSAGES[descriptor.name]
    held = getattr(message, descriptor.name)
    return f"a list, each {one}" if isinstance(held, Sequence) and not isinstance(held, str) else one

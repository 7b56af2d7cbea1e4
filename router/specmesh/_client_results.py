"""What `specmesh.client` hands out: events, generations, errors, and what a broken stream leaves to resume from."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from specmesh.v1 import router_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Started:
    """First event. `seed` is there under COUPLED only."""

    request_id: str
    model: str
    model_fingerprint: str
    seed: int | None
    rule: str


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens and the text they settle, which may lag behind them."""

    output_offset: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[pb.TokenLogprob, ...] = ()
    steps: tuple[pb.StepReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event; `finish_reason` is STOP or LENGTH. After a resume, `usage` is that of the last stream."""

    finish_reason: str
    stop_matched: str
    usage: pb.Usage


Event = Started | Delta | Finished


@dataclass(slots=True)
class Generation:
    """A whole generation; without `finished` it is what has come so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprob] = field(default_factory=list)
    steps: list[pb.StepReport] = field(default_factory=list)
    started: Started | None = None
    finished: Finished | None = None

    def add(self, event: Event) -> None:
        """Take up one event of a stream."""
        match event:
            case Started():
                self.started = event
            case Delta():
                self.text += event.text
                self.token_ids += event.token_ids
                self.logprobs += event.logprobs
                self.steps += event.steps
            case Finished():
                self.finished = event


@dataclass(frozen=True, slots=True)
class Partial:
    """What a broken stream had brought: `Client.resume` goes on from here. `text` is what had been shown."""

    request: pb.GenerateRequest
    started: Started
    token_ids: tuple[int, ...]
    text: str

    def next_request(self) -> pb.GenerateRequest:
        """The same request, with the output so far and the seed in use."""
        request = pb.GenerateRequest()
        request.CopyFrom(self.request)
        del request.continuation_token_ids[:]
        request.continuation_token_ids.extend(self.token_ids)
        if self.started.seed is not None:
            request.sampling.seed = self.started.seed
        return request


class SpecMeshError(Exception):
    """A call failed.

    `reason`: a value of `ErrorReason` without prefix, empty when the server gave none. `field`: the request field it is
    about. `retry_after`: seconds, when the server named them. `partial`: set once a stream had begun.
    """

    def __init__(
        self, code: grpc.StatusCode, message: str, reason: str = "", field: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(f"{code.name}{f' ({reason})' if reason else ''}: {message}")
        self.code = code
        self.message = message
        self.reason = reason
        self.field = field
        self.retry_after = retry_after
        self.partial: Partial | None = None


class InvalidRequest(SpecMeshError, ValueError):
    """INVALID_ARGUMENT, from the server or before sending; RESOURCE_EXHAUSTED for a message that is too large."""


class Unavailable(SpecMeshError):
    """UNAVAILABLE: no verifier, draining, or no connection."""


class Overloaded(SpecMeshError):
    """RESOURCE_EXHAUSTED: try again after `retry_after`."""


class DeadlineExceeded(SpecMeshError, TimeoutError):
    """DEADLINE_EXCEEDED."""


class NotAllowed(SpecMeshError):
    """UNAUTHENTICATED or PERMISSION_DENIED."""


ERRORS: Mapping[grpc.StatusCode, type[SpecMeshError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
}


_TOO_LARGE = re.compile(r"(SERVER|CLIENT): (Sent|Received) message larger than max \(([0-9]+) vs\. ([0-9]+)\)")
"""gRPC's own words for what no code of the router has seen."""


class _FailedCall(Protocol):
    """What the errors of grpc and of grpc.aio both offer, and `grpc.RpcError` does not declare."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Iterable[tuple[str, Any]] | None: ...


def error_from_rpc(failure: grpc.RpcError) -> SpecMeshError:
    """The exception for a failed call, with what its `google.rpc.Status` says."""
    call = cast(_FailedCall, failure)
    if too_large := _TOO_LARGE.fullmatch(call.details() or ""):
        return _too_large(call.code(), *too_large.groups())
    found: dict[str, Any] = {}
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            found |= _read_details(value)
    return ERRORS.get(call.code(), SpecMeshError)(call.code(), call.details() or "", **found)


def _too_large(code: grpc.StatusCode, side: str, way: str, size: str, limit: str) -> InvalidRequest:
    match side, way:
        case "CLIENT", "Sent":
            return InvalidRequest(code, request_above(int(size), int(limit)), field="request")
        case "SERVER", "Received":  # a router takes in more than its limit, to refuse it: the number is not the limit
            problem = f"request: {size} bytes, and the router takes less (server.max_message_bytes): shorten the prompt"
            return InvalidRequest(code, problem, field="request")
    problem = f"output: a message of {size} bytes, and {limit} are {'sent' if way == 'Sent' else 'taken'}"
    return InvalidRequest(code, f"{problem}: stream it (without unary), or ask for less", field="output")


def request_above(size: int, most: int) -> str:
    """What is said of a request of more bytes than this client sends."""
    more = "give the client max_request_bytes where the router takes more (server.max_message_bytes)"
    return f"request: {size} bytes, and at most {most} are sent: shorten the prompt, or {more}"


def _read_details(raw: bytes) -> dict[str, Any]:
    """`reason`, `field` and `retry_after`, as far as they are there."""
    found: dict[str, Any] = {}
    info, request, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(raw).details:
            if detail.Unpack(info):
                found["reason"] = info.reason
            elif detail.Unpack(request) and request.field_violations:
                found["field"] = request.field_violations[0].field
            elif detail.Unpack(retry):
                found["retry_after"] = retry.retry_delay.ToTimedelta().total_seconds()
    except DecodeError:
        return {}  # some proxy's trailer; the status itself still stands
    return found

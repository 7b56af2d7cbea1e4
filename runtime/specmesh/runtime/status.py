"""Errors of the mesh as `google.rpc.Status`, and back (specification 2, errors)."""

from collections.abc import Iterator

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from specmesh.runtime.errors import MeshError

ERROR_DOMAIN = "specmesh.dev"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
DEFAULT_RETRY_SECONDS = 1.0
"""What RESOURCE_EXHAUSTED asks a client to wait when the error does not say."""


def error_to_status(error: MeshError) -> status_pb2.Status:
    """ErrorInfo with the reason, BadRequest when a field is named, RetryInfo when waiting can help."""
    number: int = error.status.value[0]
    status = status_pb2.Status(code=number, message=error.message)
    status.details.append(_packed(error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)))
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        status.details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    seconds = retry_seconds(error)
    if seconds is not None:
        delay = Duration()
        delay.FromMilliseconds(round(seconds * 1000))
        status.details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status


def error_metadata(error: MeshError) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata: the details, and the pushback that gRPC's own retry obeys."""
    details = (DETAILS_KEY, error_to_status(error).SerializeToString())
    seconds = retry_seconds(error)
    if seconds is None:
        return (details,)
    return (details, (PUSHBACK_KEY, str(round(seconds * 1000))))


def retry_seconds(error: MeshError) -> float | None:
    """When to try again; None where the error says nothing about it."""
    if error.retry_after is None and error.status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return DEFAULT_RETRY_SECONDS
    return error.retry_after


def from_rpc_error(error: grpc.RpcError) -> MeshError:
    """What a peer's failure says, with its reason, field and retry delay where it sent them.

    The result has the class of its reason when this build knows it; `status` is always the peer's.
    """
    code: grpc.StatusCode = error.code()
    status = _details_of(error)
    message = str(error.details() or code.name)
    info = _find(status, error_details_pb2.ErrorInfo())
    bad_request = _find(status, error_details_pb2.BadRequest())
    retry = _find(status, error_details_pb2.RetryInfo())
    result = MeshError.__new__(_class_of(info.reason if info else ""))
    field = bad_request.field_violations[0].field if bad_request and bad_request.field_violations else ""
    delay = retry.retry_delay.ToMilliseconds() / 1000 if retry else None
    MeshError.__init__(result, message, field=field, retry_after=delay)
    result.status = code
    result.reason = info.reason if info else ""
    return result


def _packed(message: error_details_pb2.ErrorInfo) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed


def _details_of(error: grpc.RpcError) -> status_pb2.Status:
    trailers: dict[str, bytes] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    return status_pb2.Status.FromString(trailers.get(DETAILS_KEY, b""))


def _find(status: status_pb2.Status, into: error_details_pb2.ErrorInfo) -> error_details_pb2.ErrorInfo | None:
    return next((into for detail in status.details if detail.Unpack(into)), None)


def _class_of(reason: str) -> type[MeshError]:
    return next((cls for cls in _descendants(MeshError) if cls.reason == reason), MeshError)


def _descendants(cls: type[MeshError]) -> Iterator[type[MeshError]]:
    for below in cls.__subclasses__():
        yield below
        yield from _descendants(below)

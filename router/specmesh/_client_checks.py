"""What `specmesh.client` is given besides requests, refused by name before anything is connected or sent."""

import re
from numbers import Integral, Real

import grpc

from specmesh._client_results import InvalidRequest, request_above
from specmesh.v1 import router_service_pb2 as pb

MAX_REQUEST_BYTES = 4 << 20
"""Of a request, unless a client is told otherwise."""
MOST_REQUEST_BYTES = (1 << 30) - 1
"""gRPC's buffer for retries is twice as large, and counts in 31 bits."""
MAX_REQUEST_WORDS = f"must be a whole number from 1 to {MOST_REQUEST_BYTES}"
MAX_TIMEOUT_SECONDS = 10 * 365 * 86_400
"""Beyond some centuries a deadline no longer fits a timestamp."""


def refusal(path: str, problem: str) -> InvalidRequest:
    """The error for a field that is refused before sending."""
    return InvalidRequest(grpc.StatusCode.INVALID_ARGUMENT, f"{path}: {problem}", reason="INVALID_VALUE", field=path)


def checked_size(request: pb.GenerateRequest, max_bytes: int) -> pb.GenerateRequest:
    """A request that is sent. Raises `InvalidRequest` for one of more than `max_bytes`."""
    if (size := request.ByteSize()) > max_bytes:
        problem = request_above(size, max_bytes)
        raise InvalidRequest(grpc.StatusCode.INVALID_ARGUMENT, problem, reason="INVALID_VALUE", field="request")
    return request


def checked_timeout(timeout: object) -> float:
    """Seconds. Raises `InvalidRequest`."""
    if not isinstance(timeout, Real) or isinstance(timeout, bool) or not 0 < float(timeout) <= MAX_TIMEOUT_SECONDS:
        raise refusal("timeout", f"must be a positive number of seconds, at most {MAX_TIMEOUT_SECONDS} (ten years)")
    return float(timeout)


def checked_resumes(resumes: object) -> int:
    """How often a stream may be taken up again. Raises `InvalidRequest`."""
    if not isinstance(resumes, Integral) or isinstance(resumes, bool) or resumes < 0:
        raise refusal("resumes", "must be a whole number, 0 or more")
    return int(resumes)


def checked_request_bytes(max_request_bytes: object) -> int:
    """Of the largest request. Raises `InvalidRequest`."""
    if not isinstance(max_request_bytes, Integral) or isinstance(max_request_bytes, bool):
        raise refusal("max_request_bytes", MAX_REQUEST_WORDS)
    if not 1 <= int(max_request_bytes) <= MOST_REQUEST_BYTES:
        raise refusal("max_request_bytes", MAX_REQUEST_WORDS)
    return int(max_request_bytes)


def checked_flag(name: str, value: object) -> bool:
    """Raises `InvalidRequest` naming the option."""
    if not isinstance(value, bool):
        raise refusal(name, "must be True or False")
    return value


def checked_tracer(tracer: object) -> object:
    """An OpenTelemetry tracer, a traceparent, or None. Raises `InvalidRequest`."""
    if tracer is not None and not isinstance(tracer, str) and not hasattr(tracer, "start_span"):
        raise refusal("tracer", "must be an OpenTelemetry Tracer, or a W3C traceparent")
    return tracer


def checked_target(target: object) -> str:
    """Where the router is, in whatever form gRPC takes. Raises `InvalidRequest`."""
    if not isinstance(target, str) or not target or target.startswith(("http://", "https://")):
        raise refusal("target", "must be HOST:PORT, or another name that gRPC resolves, such as dns:///NAME:PORT")
    return target


def checked_token(token: object) -> object:
    """A bearer token, a function that gives one, or None. Raises `InvalidRequest`, which does not show it."""
    visible = isinstance(token, str) and re.fullmatch(r"[!-~]+", token)
    if token is not None and not callable(token) and not visible:
        raise refusal("token", "must be a text of visible ASCII characters, or a function that gives one")
    return token

"""Errors with a status, a documented reason and the field they are about; `specmesh.runtime.serving` sends them."""

import grpc


class MeshError(Exception):
    """A failure a caller may see.

    `reason` is a value of `ErrorReason` without its prefix. Messages never hold text or token ids of a request.
    """

    status = grpc.StatusCode.INTERNAL
    reason = ""

    def __init__(self, message: str, *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after = retry_after


class InvalidValue(MeshError, ValueError):
    """A value out of range."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_VALUE"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", field=field)


class UnknownField(MeshError):
    """A field number this server does not know."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    reason = "UNKNOWN_FIELD"


class UnsupportedOption(InvalidValue):
    """A known option that this deployment does not serve."""

    reason = "UNSUPPORTED_OPTION"


class ContextTooLong(InvalidValue):
    """Prompt and output do not fit the context."""

    reason = "CONTEXT_TOO_LONG"


class UnknownModel(MeshError):
    """No such model."""

    status = grpc.StatusCode.NOT_FOUND
    reason = "UNKNOWN_MODEL"


class Overloaded(MeshError):
    """A queue or the memory is full; retry after the pushback."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "OVERLOADED"


class QuotaExceeded(MeshError):
    """The caller's own limit; retry after the pushback."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUOTA"


class NotRead(MeshError):
    """The client did not take what its stream had for it; it may resume with what it has received."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "NOT_READ"


class NoVerifier(MeshError):
    """No verifier can be reached."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "NO_VERIFIER"


class Draining(MeshError):
    """This server takes no new work."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "DRAINING"


class NotAllowed(MeshError):
    """The caller may not do this."""

    status = grpc.StatusCode.PERMISSION_DENIED
    reason = "NOT_ALLOWED"


class DeadlinePassed(MeshError):
    """The time that the caller gave is over; its own clock says so at about the same moment."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_PASSED"


class NonFiniteLogits(MeshError):
    """The target's logits were NaN or infinite for this session."""

    reason = "NON_FINITE_LOGITS"

"""One generation as `specmesh.client` drives it (no IO): what came, and going on where a stream broke."""

import random
import time
from typing import Any

import grpc
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from specmesh._client_checks import checked_size
from specmesh._client_results import (
    Delta,
    Event,
    Finished,
    InvalidRequest,
    Partial,
    SpecMeshError,
    Started,
    error_from_rpc,
)
from specmesh.v1 import router_service_pb2 as pb

RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 2.0
MAX_ATTEMPTS = 5
"""Of a call that fails before its first message."""
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailer of gRPC's retries: milliseconds until the next attempt; negative: none."""


class Run:
    """One generation over one stream or several (no IO): what to send, what came, whether to go on after a failure."""

    def __init__(
        self,
        request: pb.GenerateRequest,
        timeout: float,
        resumes: int,
        max_bytes: int,
        partial: Partial | None = None,
        *,
        attempts: int = 1,
    ) -> None:
        """`max_bytes`: of a request; the one of a resume is larger by what has come. Raises `InvalidRequest`.

        `attempts`: of each stream until its first message, by the rules of gRPC's own retries; 1 leaves them to gRPC.
        """
        self.request = checked_size(request, max_bytes)
        self.finished = False
        self._deadline = time.monotonic() + timeout
        self._resumes = resumes
        self._max_bytes = max_bytes
        self._backoff = FIRST_BACKOFF_SECONDS
        self._max_attempts = attempts
        self._attempts = _Attempts(attempts)
        self._started = None if partial is None else partial.started
        self._token_ids = list(request.continuation_token_ids)
        self._text = "" if partial is None else partial.text

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, which spans all streams."""
        return max(self._deadline - time.monotonic(), 0.001)

    def feed(self, message: pb.GenerateResponse) -> Event | None:
        """The event for the caller; None for what the caller has already."""
        self._attempts.answered = True
        match message.WhichOneof("event"):
            case "started":
                return self._feed_started(message.started)
            case "delta":
                return self._feed_delta(message.delta)
            case "finished":
                self.finished = True
                end = message.finished
                return Finished(_bare(pb.FinishReason, end.finish_reason), end.stop_matched, end.usage)
        return None  # an event of a later version

    def _feed_started(self, message: pb.GenerationStarted) -> Started | None:
        seed = message.seed if message.HasField("seed") else None
        rule = _bare(pb.VerificationRule, message.rule)
        started = Started(message.request_id, message.model, message.model_fingerprint, seed, rule)
        before, self._started = self._started, self._started or started
        if before is not None and before.model_fingerprint != started.model_fingerprint:
            raise self._broken(grpc.StatusCode.ABORTED, "the model changed before the stream was resumed")
        return started if before is None else None

    def _feed_delta(self, delta: pb.OutputDelta) -> Delta | None:
        have = len(self._token_ids)
        if delta.token_ids and delta.output_offset + len(delta.token_ids) <= have:
            return None
        if delta.token_ids and delta.output_offset != have:
            raise self._broken(grpc.StatusCode.DATA_LOSS, "the stream does not go on where it was")
        self._token_ids += delta.token_ids
        self._text += delta.text
        return Delta(have, tuple(delta.token_ids), delta.text, tuple(delta.logprobs), tuple(delta.steps))

    def end(self) -> None:
        """The stream ended in OK: raises unless its last event came."""
        if not self.finished:
            raise self._broken(grpc.StatusCode.DATA_LOSS, "the stream ended without its last event")

    def resume_after(self, failure: grpc.RpcError) -> float:
        """Seconds to wait before the next stream; raises the error when there shall be none, with what had come."""
        error = error_from_rpc(failure)
        error.partial = partial = self._partial()
        hopeless = isinstance(error, InvalidRequest) or error.code not in RETRYABLE
        repeat_after = None if hopeless else self._attempts.next_after(failure)
        if repeat_after is not None and repeat_after < self.remaining:
            return repeat_after
        wait = self._backoff if error.retry_after is None else error.retry_after
        if self._resumes <= 0 or partial is None or hopeless or wait >= self.remaining:
            raise error from failure
        self.request = self._sendable(partial, failure)
        self._attempts = _Attempts(self._max_attempts)
        self._resumes -= 1
        self._backoff = min(2 * self._backoff, MAX_BACKOFF_SECONDS)
        return wait

    def _sendable(self, partial: Partial, failure: grpc.RpcError) -> pb.GenerateRequest:
        try:
            return checked_size(partial.next_request(), self._max_bytes)
        except InvalidRequest as error:
            error.partial = partial
            raise error from failure

    def _partial(self) -> Partial | None:
        if self._started is None:
            return None
        return Partial(self.request, self._started, tuple(self._token_ids), self._text)

    def _broken(self, code: grpc.StatusCode, message: str) -> SpecMeshError:
        error = SpecMeshError(code, message)
        error.partial = self._partial()
        return error


class _Attempts:
    """One stream's attempts to begin, as gRPC would count them (gRFC A6)."""

    def __init__(self, most: int) -> None:
        self.answered = False
        """A message has come: what fails now is resumed, not repeated."""
        self._left = most - 1
        self._backoff = FIRST_BACKOFF_SECONDS

    def next_after(self, failure: grpc.RpcError) -> float | None:
        """Seconds until the next attempt; None: there is none."""
        trailers: Any = failure.trailing_metadata() or () if isinstance(failure, grpc.Call) else ()
        pushback_ms = next((value for key, value in trailers if key == PUSHBACK_KEY), None)
        forbidden = pushback_ms is not None and not str(pushback_ms).isdecimal()
        if self.answered or self._left <= 0 or forbidden:
            return None
        wait = self._backoff * random.uniform(0.8, 1.2) if pushback_ms is None else int(pushback_ms) / 1e3
        self._left -= 1
        self._backoff = min(2 * self._backoff, MAX_BACKOFF_SECONDS)
        return wait


def _bare(enum: EnumTypeWrapper, number: int) -> str:
    """An enum value's name without the enum's prefix; its number when a later version has added it."""
    value = enum.DESCRIPTOR.values_by_number.get(number)
    prefix: str = enum.DESCRIPTOR.values[0].name.removesuffix("UNSPECIFIED")
    return str(number) if value is None else value.name.removeprefix(prefix)

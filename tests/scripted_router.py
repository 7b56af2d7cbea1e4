"""A RouterService over real gRPC whose output is a function of the seed, and which fails where a test says."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1 import router_service_pb2_grpc as pb_grpc

DRAWN_SEED = 7


@dataclass(frozen=True)
class Failure:
    """How one call ends: `after` so many tokens of the output have been sent (None: before anything is sent)."""

    code: grpc.StatusCode
    after: int | None = None
    reason: str = ""
    field: str = ""
    retry_seconds: float | None = None
    pushback_ms: int | None = None
    details: bytes | None = None


@dataclass
class Script:
    """`failures` are spent one a call; then every call succeeds.

    With `hang_after`, a stream stops after so many tokens until its call is over, which `over` tells. The rest records
    what came.
    """

    failures: list[Failure] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)
    end_early: bool = False
    hang_after: int | None = None
    hanging: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    remaining: list[float] = field(default_factory=list)


def token_at(seed: int, index: int) -> int:
    """The output is a function of seed and position, as under COUPLED."""
    return (seed * 31 + index * 17) % 97


def text_of(seed: int, count: int) -> str:
    return "".join(f"{token_at(seed, index)} " for index in range(count))


def status_details(failure: Failure) -> bytes:
    """`google.rpc.Status` as a mesh server writes it."""
    details = []
    for message in (
        error_details_pb2.ErrorInfo(reason=failure.reason, domain="specmesh") if failure.reason else None,
        error_details_pb2.BadRequest(field_violations=[{"field": failure.field}]) if failure.field else None,
        error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=int(failure.retry_seconds * 1e9)))
        if failure.retry_seconds is not None
        else None,
    ):
        if message is not None:
            packed = any_pb2.Any()
            packed.Pack(message)
            details.append(packed)
    code = code_pb2.Code.Value(failure.code.name)
    return status_pb2.Status(code=code, message="scripted", details=details).SerializeToString()


class ScriptedRouterService(pb_grpc.RouterServiceServicer):
    """Follows a `Script`."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def Generate(self, request, context) -> Iterator[pb.GenerateResponse]:  # noqa: ANN001, N802
        script = self.script
        context.add_callback(script.over.set)
        self._record(request, context)
        failure = script.failures.pop(0) if script.failures else None
        if failure is not None and failure.after is None:
            self._fail(failure, context)
        seed = request.sampling.seed if request.sampling.HasField("seed") else DRAWN_SEED
        coupled = request.sampling.rule not in (pb.VERIFICATION_RULE_BLOCK, pb.VERIFICATION_RULE_TOKEN)
        yield pb.GenerateResponse(
            started=pb.GenerationStarted(
                request_id=request.request_id or "drawn",
                model="tiny",
                model_fingerprint=script.fingerprints.pop(0) if script.fingerprints else "f",
                seed=seed if coupled else None,
                rule=pb.VERIFICATION_RULE_COUPLED if coupled else request.sampling.rule,
            )
        )
        total = request.stop.max_output_tokens
        for index in range(len(request.continuation_token_ids), total):
            if failure is not None and failure.after == index:
                self._fail(failure, context)
            if script.hang_after == index:
                script.hanging.set()
                script.over.wait()
            token = token_at(seed, index)
            delta = pb.OutputDelta(output_offset=index, token_ids=[token], text=f"{token} ")
            if request.output.HasField("logprobs"):
                delta.logprobs.add(logprob=-0.5)
            yield pb.GenerateResponse(delta=delta)
        if not script.end_early:
            usage = pb.Usage(input_token_count=3, output_token_count=total)
            finished = pb.GenerationFinished(finish_reason=pb.FINISH_REASON_LENGTH, usage=usage)
            yield pb.GenerateResponse(finished=finished)

    def ListModels(self, request, context) -> pb.ListModelsResponse:  # noqa: ANN001, N802
        self._record(request, context)
        if self.script.failures:
            self._fail(self.script.failures.pop(0), context)
        return pb.ListModelsResponse(models=[pb.Model(name="tiny", vocabulary_size=97)])

    def ListDrafts(self, request, context) -> pb.ListDraftsResponse:  # noqa: ANN001, N802
        self._record(request, context)
        return pb.ListDraftsResponse(arms=[pb.DraftArm(name="code@01234567", state=pb.ARM_STATE_READY)])

    def _record(self, request, context) -> None:  # noqa: ANN001
        self.script.requests.append(request)
        self.script.metadata.append(dict(context.invocation_metadata()))
        self.script.times.append(time.monotonic())
        self.script.remaining.append(context.time_remaining())

    def _fail(self, failure: Failure, context) -> None:  # noqa: ANN001
        details = status_details(failure) if failure.details is None else failure.details
        trailers = [("grpc-status-details-bin", details)]
        if failure.pushback_ms is not None:
            trailers.append(("grpc-retry-pushback-ms", str(failure.pushback_ms)))
        context.set_trailing_metadata(trailers)
        context.abort(failure.code, "scripted")


@contextmanager
def scripted_router(
    script: Script, credentials: grpc.ServerCredentials | None = None, max_bytes: int = 8 << 20
) -> Iterator[str]:
    """A running server's address; it takes requests of `max_bytes` at most."""
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", max_bytes)])
    pb_grpc.add_RouterServiceServicer_to_server(ScriptedRouterService(script), server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()

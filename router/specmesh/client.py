"""Client of SpecMesh: generate, stream and resume over gRPC. Needs grpc and protobuf, neither torch nor the services.

    with Client("router:443", tls=Tls()) as client:
        print(client.generate("Once upon a time", max_output_tokens=64).text)

A prompt is a text, a sequence of token ids, or a sequence of messages, each (role, content) or a mapping of these two.
Calls that fail before their first token are repeated unseen; a stream that breaks later is resumed where it
broke, under a seed with the very same text. Errors are `SpecMeshError`s.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack

import grpc
import grpc.aio
from google.protobuf.message import Message

from specmesh._client_channel import Tls, async_channel, channel
from specmesh._client_checks import (
    MAX_REQUEST_BYTES,
    checked_flag,
    checked_request_bytes,
    checked_resumes,
    checked_target,
    checked_timeout,
    checked_token,
    checked_tracer,
    refusal,
)
from specmesh._client_request import Options, Prompt, build_request
from specmesh._client_results import (
    DeadlineExceeded,
    Delta,
    Event,
    Finished,
    Generation,
    InvalidRequest,
    NotAllowed,
    Overloaded,
    Partial,
    SpecMeshError,
    Started,
    Unavailable,
    error_from_rpc,
)
from specmesh._client_run import MAX_ATTEMPTS, Run
from specmesh._client_tracing import CallSpan
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

__all__ = [
    "AsyncClient",
    "Client",
    "DeadlineExceeded",
    "Delta",
    "Event",
    "Finished",
    "Generation",
    "InvalidRequest",
    "NotAllowed",
    "Options",
    "Overloaded",
    "Partial",
    "Prompt",
    "SpecMeshError",
    "Started",
    "Tls",
    "Unavailable",
]

GENERATE = "specmesh.v1.RouterService/Generate"
Answer = TypeVar("Answer")


class ConnectionOptions(TypedDict, total=False):
    """What a client may be given besides its target and `tls`.

    token: a bearer token, or a function that gives the current one.
    plaintext_token: send it without `tls`, because something else encrypts.
    timeout: seconds of a call that names none; default 60.
    resumes: how often a stream that breaks is taken up again; default 3.
    max_request_bytes: of the largest request; default 4 MiB, which routers take unless told otherwise.
    tracer: an OpenTelemetry `Tracer`: each Generate call is a client span of its. Or a W3C traceparent, sent as it is.
    """

    token: str | Callable[[], str] | None
    plaintext_token: bool
    timeout: float
    resumes: int
    max_request_bytes: int
    tracer: Any


class _Connection:
    """What both clients share; `_channel` and `_stub` are theirs."""

    _attempts: int
    """Of a stream until its first message, `Run`'s own; 1 where gRPC repeats."""

    def __init__(self, connect: Callable[[int], Any], tls: Tls | None, options: ConnectionOptions) -> None:
        if unknown := options.keys() - ConnectionOptions.__annotations__.keys():
            raise TypeError(f"unknown option: {', '.join(sorted(unknown))}")
        self._token: Any = checked_token(options.get("token"))
        if tls is not None and not isinstance(tls, Tls):
            raise refusal("tls", "must be specmesh.client.Tls(...)")
        plaintext_token = checked_flag("plaintext_token", options.get("plaintext_token", False))
        if self._token is not None and tls is None and not plaintext_token:
            raise ValueError("a token needs tls, or plaintext_token=True where something else encrypts")
        self._timeout = checked_timeout(options.get("timeout", 60.0))
        self._resumes = checked_resumes(options.get("resumes", 3))
        self._tracer = checked_tracer(options.get("tracer"))
        self._max_bytes = checked_request_bytes(options.get("max_request_bytes", MAX_REQUEST_BYTES))
        self._channel = connect(self._max_bytes)
        self._stub: Any = RouterServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def _call(self, run: Run, span: CallSpan) -> Any:  # noqa: ANN401 - a call of grpc or grpc.aio
        return self._stub.Generate(run.request, timeout=run.remaining, metadata=[*self._metadata(), *span.metadata])

    def _metadata(self) -> list[tuple[str, str]]:
        token = self._token() if callable(self._token) else self._token
        return [] if token is None else [("authorization", f"Bearer {token}")]

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else checked_timeout(timeout)

    def _run(self, request: pb.GenerateRequest, timeout: float | None, partial: Partial | None = None) -> Run:
        seconds = self._seconds(timeout)
        return Run(request, seconds, self._resumes, self._max_bytes, partial, attempts=self._attempts)


class Client(_Connection):
    """Blocking client; safe to share between threads."""

    _attempts = MAX_ATTEMPTS

    def __init__(self, target: str, *, tls: Tls | None = None, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(partial(channel, checked_target(target), tls), tls, options)

    def generate(self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]) -> Generation:
        """The whole generation. Raises `SpecMeshError`."""
        generation = Generation()
        for event in self.stream(prompt, timeout=timeout, **options):
            generation.add(event)
        return generation

    def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Generator[Event, None, None]:
        """Events as they come; closing the iterator cancels. A bad request raises here, before anything is sent."""
        return self._events(self._run(build_request(prompt, options), timeout))

    def resume(self, partial: Partial, *, timeout: float | None = None) -> Generator[Event, None, None]:
        """The events that were still to come when `partial` broke off."""
        return self._events(self._run(partial.next_request(), timeout, partial))

    def _events(self, run: Run) -> Generator[Event, None, None]:
        while not run.finished:
            span = CallSpan(self._tracer, GENERATE)
            call = self._call(run, span)
            try:
                with span:
                    for message in call:
                        event, span.complete = run.feed(message), run.finished
                        if event is not None:
                            yield event
                    run.end()
            except grpc.RpcError as failure:
                if not run.finished:
                    time.sleep(run.resume_after(failure))
            finally:
                call.cancel()

    def list_models(self, *, timeout: float | None = None) -> list[pb.Model]:
        """Targets served to this caller."""
        return list(self._ask(self._stub.ListModels, pb.ListModelsRequest(), timeout).models)

    def list_drafts(self, model: str = "", *, timeout: float | None = None) -> list[pb.DraftArm]:
        """Arms with their state; needs the operator role."""
        return list(self._ask(self._stub.ListDrafts, pb.ListDraftsRequest(model=model), timeout).arms)

    def _ask(self, method: Callable[..., Answer], request: Message, timeout: float | None) -> Answer:
        try:
            return method(request, timeout=self._seconds(timeout), metadata=self._metadata())
        except grpc.RpcError as failure:
            raise error_from_rpc(failure) from failure

    def close(self) -> None:
        """Cancels what still runs."""
        self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncClient(_Connection):
    """The same for asyncio; made and used within one event loop. `timeout` is the deadline that gRPC sends along."""

    _attempts = 1

    def __init__(self, target: str, *, tls: Tls | None = None, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(partial(async_channel, checked_target(target), tls), tls, options)

    async def generate(
        self,
        prompt: Prompt,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **options: Unpack[Options],
    ) -> Generation:
        """As `Client.generate`."""
        generation = Generation()
        async for event in self.stream(prompt, timeout=timeout, **options):
            generation.add(event)
        return generation

    def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[Event, None]:
        """As `Client.stream`."""
        return self._events(self._run(build_request(prompt, options), timeout))

    def resume(self, partial: Partial, *, timeout: float | None = None) -> AsyncGenerator[Event, None]:
        """As `Client.resume`."""
        return self._events(self._run(partial.next_request(), timeout, partial))

    async def _events(self, run: Run) -> AsyncGenerator[Event, None]:
        while not run.finished:
            span = CallSpan(self._tracer, GENERATE)
            call = self._call(run, span)
            try:
                with span:
                    async for message in call:
                        event, span.complete = run.feed(message), run.finished
                        if event is not None:
                            yield event
                    run.end()
            except grpc.RpcError as failure:
                if not run.finished:
                    await asyncio.sleep(run.resume_after(failure))
            finally:
                call.cancel()

    async def list_models(self, *, timeout: float | None = None) -> list[pb.Model]:  # noqa: ASYNC109
        """As `Client.list_models`."""
        return list((await self._ask(self._stub.ListModels, pb.ListModelsRequest(), timeout)).models)

    async def list_drafts(self, model: str = "", *, timeout: float | None = None) -> list[pb.DraftArm]:  # noqa: ASYNC109
        """As `Client.list_drafts`."""
        return list((await self._ask(self._stub.ListDrafts, pb.ListDraftsRequest(model=model), timeout)).arms)

    async def _ask(
        self,
        method: Callable[..., Awaitable[Answer]],
        request: Message,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Answer:
        try:
            return await method(request, timeout=self._seconds(timeout), metadata=self._metadata())
        except grpc.RpcError as failure:
            raise error_from_rpc(failure) from failure

    async def close(self) -> None:
        """Cancels what still runs."""
        await self._channel.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

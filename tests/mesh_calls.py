"""Calls to a router as a client makes them, kept raw: what arrived, in the order it arrived."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio

from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

T = TypeVar("T")
TIMEOUT = 150.0
"""Seconds: far beyond what a call takes, so that a machine busy with other things fails no test."""


@dataclass
class Generation:
    """One stream, gathered."""

    started: pb.GenerationStarted | None = None
    finished: pb.GenerationFinished | None = None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    steps: list[pb.StepReport] = field(default_factory=list)

    def take(self, event: pb.GenerateResponse) -> None:
        """Add an event; offsets must leave no gap and repeat nothing."""
        kind = event.WhichOneof("event")
        if kind == "started":
            assert self.started is None
            self.started = event.started
        elif kind == "finished":
            assert self.finished is None
            self.finished = event.finished
        else:
            assert self.started is not None
            self.token_ids += event.delta.token_ids
            self.text += event.delta.text
            self.logprobs += [each.logprob for each in event.delta.logprobs]
            self.steps += event.delta.steps

    @property
    def summary(self) -> tuple[list[int], int, int, int]:
        """What must not depend on drafts: ids, finish reason, input and output counts."""
        assert self.finished is not None
        usage = self.finished.usage
        return self.token_ids, self.finished.finish_reason, usage.input_token_count, usage.output_token_count


def request(
    prompt: Sequence[int] | str = (0, 1),
    max_output_tokens: int = 20,
    *,
    arms: Sequence[str] | None = None,
    block_length: int | None = None,
    **fields: Any,
) -> pb.GenerateRequest:
    """A request: `arms` None leaves drafts to the policy, empty turns them off, names name them."""
    message = pb.GenerateRequest(**fields)
    if isinstance(prompt, str):
        message.text = prompt
    elif not message.HasField("chat"):
        message.tokens.ids.extend(prompt)
    message.stop.max_output_tokens = max_output_tokens
    if arms is not None:
        message.draft.mode = pb.DRAFT_MODE_ONLY if arms else pb.DRAFT_MODE_OFF
        message.draft.arms.extend(arms)
    if block_length is not None:
        message.draft.max_block_length = block_length
    return message


@asynccontextmanager
async def router_at(address: str) -> AsyncIterator[RouterServiceStub]:
    """A stub."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield RouterServiceStub(channel)


async def generate(stub: RouterServiceStub, message: pb.GenerateRequest, **call: Any) -> Generation:
    """One generation to its end. Raises `AioRpcError`."""
    generation = Generation()
    async for event in stub.Generate(message, **({"timeout": TIMEOUT} | call)):
        generation.take(event)
    assert generation.finished is not None
    return generation


async def refused(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call was expected to fail")


async def at_most(limit: int, calls: Sequence[Awaitable[T]]) -> list[T]:
    """All results, `limit` of the calls at a time."""
    gate = asyncio.Semaphore(limit)

    async def one(call: Awaitable[T]) -> T:
        async with gate:
            return await call

    return list(await asyncio.gather(*(one(call) for call in calls)))


async def arms_of(stub: RouterServiceStub, **call: Any) -> dict[str, pb.DraftArm]:
    """Arms by pool."""
    response = await stub.ListDrafts(pb.ListDraftsRequest(), timeout=TIMEOUT, **call)
    return {arm.name.partition("@")[0]: arm for arm in response.arms}


async def wait_ready(stub: RouterServiceStub, *pools: str, seconds: float = 40.0, **call: Any) -> None:
    """Until the arms of these pools are READY."""
    await wait_state(stub, dict.fromkeys(pools, pb.ARM_STATE_READY), seconds=seconds, **call)


async def wait_state(stub: RouterServiceStub, states: dict[str, int], *, seconds: float = 40.0, **call: Any) -> None:
    """Until the arms have these states."""
    async with asyncio.timeout(seconds):
        while True:
            arms = await arms_of(stub, **call)
            if all(pool in arms and arms[pool].state == state for pool, state in states.items()):
                return
            await asyncio.sleep(0.05)

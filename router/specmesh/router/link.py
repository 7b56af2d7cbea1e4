"""A long-lived stream to one replica: entries of many sessions leave as frames, frames that arrive are handed on."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc.aio
from google.protobuf.message import Message

from specmesh.runtime.handshake import handshake_fault
from specmesh.runtime.streams import FrameQueue

E = TypeVar("E", bound=Message)


class StreamEnded(Exception):
    """The peer closed its side of a stream that should last."""


def lost_because(error: "grpc.aio.AioRpcError | StreamEnded") -> str:
    """Why a connection is gone or did not come about; nothing in it is of a request."""
    if isinstance(error, StreamEnded):
        return f"connection lost: {error}"
    fault = handshake_fault(error.details() or "")
    return f"connection lost: {error.code().name}" + (f", {fault.value} (tls.*)" if fault else "")


class Link(Generic[E]):
    """One stream; belongs to the loop it is made in."""

    def __init__(
        self,
        call: "grpc.aio.StreamStreamCall[Any, Any]",
        make_frame: Callable[[list[E]], Message],
        receive: Callable[[Any], None],
    ) -> None:
        """`receive` gets each frame of the peer and must not block."""
        self._call = call
        self._make_frame = make_frame
        self._receive = receive
        self._queue: FrameQueue[E] = FrameQueue()

    def send(self, entry: E) -> None:
        """Queue an entry for the next frame. Raises `Overloaded` when the peer does not read."""
        self._queue.put(entry)

    async def run(self) -> None:
        """Carry frames until the stream ends. Raises `grpc.aio.AioRpcError` or `StreamEnded`."""
        sides = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            for side in sides:
                if side.done():
                    side.result()
        finally:
            self._queue.close()
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)
            self._call.cancel()

    async def _read(self) -> None:
        while (frame := await self._call.read()) is not grpc.aio.EOF:
            self._receive(frame)
        code = await self._call.code()
        raise StreamEnded(f"the peer closed its stream with {code.name}")

    async def _write(self) -> None:
        async for entries in self._queue.frames():
            await self._call.write(self._make_frame(entries))

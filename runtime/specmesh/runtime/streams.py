"""Long-lived streams: bounded queues whose content leaves as one frame, and the channels that carry them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

import grpc
import grpc.aio

from specmesh.runtime.config import ClientTls
from specmesh.runtime.errors import Overloaded

E = TypeVar("E")

DEFAULT_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
DEFAULT_KEEPALIVE_SECONDS = 10.0
"""At or above every server's `min_ping_interval_seconds`: a client that pings faster is sent away."""
PING_TIMEOUT_MS = 10_000
"""A process that does not answer a ping for so long is lost: stopped, or cut off. gRPC waits a minute for pings other
than keepalive's own, and starts none of these while one is out, so both limits are set.
"""


def _proto_bytes(entry: object) -> int:
    return entry.ByteSize()  # type: ignore[attr-defined, no-any-return]


class FrameQueue(Generic[E]):
    """Entries of many sessions on their way into one stream.

    The writer takes all that is queued as one frame, so a busy stream sends few messages. Belongs to one event loop.
    """

    def __init__(
        self,
        *,
        max_entries: int = 8192,
        max_bytes: int = 16 * 1024 * 1024,
        max_frame_entries: int = 1024,
        max_frame_bytes: int = 1024 * 1024,
        size_of: Callable[[E], int] = _proto_bytes,
    ) -> None:
        """Limits of the queue (unread entries and bytes of the peer) and of one frame."""
        self._entries: deque[tuple[E, int]] = deque()
        self._bytes = 0
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._max_frame_entries, self._max_frame_bytes = max_frame_entries, max_frame_bytes
        self._size_of = size_of
        self._changed = asyncio.Event()
        self.closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: E) -> None:
        """Queue one entry. Raises `Overloaded` when the peer does not read; after `close` the entry goes nowhere."""
        if self.closed:
            return
        size = self._size_of(entry)
        if len(self._entries) >= self._max_entries or self._bytes + size > self._max_bytes:
            limit = f"{self._max_entries} entries or {self._max_bytes} bytes"
            raise Overloaded(f"the peer does not read its stream: limit of {limit} unread")
        self._entries.append((entry, size))
        self._bytes += size
        self._changed.set()

    async def ready(self) -> bool:
        """Wait until there are entries to get; False once closed and drained."""
        while not self._entries and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._entries)

    async def get(self) -> list[E]:
        """Wait for entries and return all that fit one frame, in order; an empty list once closed and drained."""
        await self.ready()
        frame: list[E] = []
        frame_bytes = 0
        while self._entries and len(frame) < self._max_frame_entries:
            if frame and frame_bytes + self._entries[0][1] > self._max_frame_bytes:
                break
            entry, size = self._entries.popleft()
            frame.append(entry)
            frame_bytes += size
        self._bytes -= frame_bytes
        return frame

    async def frames(self) -> AsyncIterator[list[E]]:
        """Every frame until `close`."""
        while frame := await self.get():
            yield frame

    def close(self) -> None:
        """No more entries; what is queued can still be taken."""
        self.closed = True
        self._changed.set()


def channel(
    address: str,
    *,
    tls: ClientTls | None = None,
    keepalive_seconds: float = DEFAULT_KEEPALIVE_SECONDS,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
) -> grpc.aio.Channel:
    """Open a channel to a server of the mesh; pings go on without calls, so that a dead peer is noticed."""
    options = [
        ("grpc.keepalive_time_ms", round(keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))  # type: ignore[arg-type]
    return grpc.aio.secure_channel(address, client_credentials(tls), options=options, interceptors=interceptors)


def client_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Read the files of `tls`. Raises OSError naming the file."""
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca_file.read_bytes() if tls.ca_file else None,
        private_key=tls.key_file.read_bytes() if tls.key_file else None,
        certificate_chain=tls.cert_file.read_bytes() if tls.cert_file else None,
    )

"""Channels of `specmesh.client`: retries before the first message, all routers behind a name, keepalive, TLS."""

import json
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from specmesh._client_run import FIRST_BACKOFF_SECONDS, MAX_ATTEMPTS, MAX_BACKOFF_SECONDS, RETRYABLE

MAX_RESPONSE_BYTES = 64 << 20
SERVICE = "specmesh.v1.RouterService"
ALL_CALLS = [{"service": SERVICE}]
UNARY_CALLS = [{"service": SERVICE, "method": "ListModels"}, {"service": SERVICE, "method": "ListDrafts"}]
"""All that gRPC may repeat in blocking channels: a blocking stream whose retries all fail never ends there, not even by
its deadline (grpcio 1.72 to 1.85), so `Run` repeats streams itself.
"""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM bytes. Without roots the system's are used; key and chain together are the client's certificate."""

    root_certificates: bytes | None = None
    private_key: bytes | None = None
    certificate_chain: bytes | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel."""
        return grpc.ssl_channel_credentials(self.root_certificates, self.private_key, self.certificate_chain)


def channel_options(max_request_bytes: int, repeated: list[dict[str, str]]) -> list[tuple[str, Any]]:
    """Retry before the first message, at the server's pushback if any; all routers behind a name in turn; keepalive.

    `repeated`: the methods that gRPC retries.
    """
    retry = {
        "maxAttempts": MAX_ATTEMPTS, "retryableStatusCodes": [code.name for code in RETRYABLE],
        "initialBackoff": f"{FIRST_BACKOFF_SECONDS}s", "maxBackoff": f"{MAX_BACKOFF_SECONDS}s", "backoffMultiplier": 2,
    }  # fmt: skip
    method = {"name": repeated, "retryPolicy": retry}
    return [
        ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [method]})),
        ("grpc.per_rpc_retry_buffer_size", 2 * max_request_bytes),  # a request that does not fit is never repeated
        ("grpc.max_send_message_length", max_request_bytes),
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def channel(target: str, tls: Tls | None, max_bytes: int) -> grpc.Channel:
    """To a router, for requests of at most `max_bytes`."""
    options = channel_options(max_bytes, UNARY_CALLS)
    return grpc.secure_channel(target, tls.credentials(), options) if tls else grpc.insecure_channel(target, options)


def async_channel(target: str, tls: Tls | None, max_bytes: int) -> grpc.aio.Channel:
    """The same for asyncio."""
    options = channel_options(max_bytes, ALL_CALLS)
    if tls is None:
        return grpc.aio.insecure_channel(target, options)
    return grpc.aio.secure_channel(target, tls.credentials(), options)

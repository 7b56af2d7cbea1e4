"""The first words between a router and what answers at an address: `GetInfo`, or what is there instead."""

from collections.abc import Awaitable
from typing import TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specmesh.router.registration import Target, needs_vocabulary
from specmesh.runtime.contract import DRAFT_SERVICE, ROUTER_SERVICE, VERIFIER_SERVICE
from specmesh.runtime.types import ServiceInfo
from specmesh.runtime.wire import service_info_from_proto
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1.draft_service_pb2_grpc import DraftServiceStub

R = TypeVar("R")

REGISTRATION_SECONDS = 10.0
DRAFT, VERIFIER = "a draft service", "a verifier"
KINDS = {DRAFT_SERVICE: DRAFT, VERIFIER_SERVICE: VERIFIER, ROUTER_SERVICE: "a router"}
"""What people call the services of the mesh."""


class WrongService(Exception):
    """Something answers that is not what was expected; the message says what and what."""


async def introduce_draft(channel: grpc.aio.Channel, target: Target) -> ServiceInfo:
    """What a draft says of itself; with its vocabulary where the digests leave open whether it is the target's.

    Raises `WrongService` and `grpc.aio.AioRpcError`.
    """
    info = await _draft_info(channel, want_vocabulary=False)
    if needs_vocabulary(info, target.info):
        info = await _draft_info(channel, want_vocabulary=True)
    return info


async def _draft_info(channel: grpc.aio.Channel, *, want_vocabulary: bool) -> ServiceInfo:
    stub = DraftServiceStub(channel)  # type: ignore[no-untyped-call]
    request = draft_pb.DraftServiceGetInfoRequest(want_vocabulary=want_vocabulary)
    response = await or_wrong_service(channel, stub.GetInfo(request, timeout=REGISTRATION_SECONDS), expected=DRAFT)
    return service_info_from_proto(response.info)


async def or_wrong_service(channel: grpc.aio.Channel, call: Awaitable[R], *, expected: str) -> R:
    """The answer of `call`. Raises `WrongService` where the method is not known, any other failure as it is."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        raise WrongService(f"{await _what_is_there(channel)}, {expected} was expected") from None


async def _what_is_there(channel: grpc.aio.Channel) -> str:
    """By the names that its health knows; health answers every peer, and from the first moment."""
    for name, kind in KINDS.items():
        if await _knows(channel, name):
            return f"{kind} is there ({name})"
    return "no service of SpecMesh is there"


async def _knows(channel: grpc.aio.Channel, name: str) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=REGISTRATION_SECONDS)
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
            return False
        raise
    return True

"""Addresses at which something else answers than what was expected there: said, shown, and looked at again."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import grpc.aio
import pytest
from router_drafts import DRAFT_INFO, listed, ready
from router_fakes import FakeDraft, connect, ignore_target, other, quick_config, running, serving, until
from router_parts import TARGET

from specmesh.router.config import PoolConfig
from specmesh.router.drafts import Drafts
from specmesh.router.verifiers import Verifiers
from specmesh.runtime.config import ServerConfig
from specmesh.runtime.serving import MeshServer
from specmesh.v1 import router_service_pb2 as pb


@asynccontextmanager
async def server_of(*names: str) -> AsyncIterator[MeshServer]:
    """A server of the mesh with nothing but the health of these services."""
    server = MeshServer(ServerConfig(), names)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The reasons of what was said at WARNING."""
    return [vars(record)["reason"] for record in caplog.records if record.levelno == logging.WARNING]


def drafts_at(address: str, connect: Callable[[str], grpc.aio.Channel] = connect) -> Drafts:
    return Drafts(quick_config(pools=[PoolConfig(name="good", addresses=(address,))]), connect=connect)


async def test_a_verifier_where_a_draft_is_expected_is_said_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and it is used when it has been put right."""
    expected = "a verifier is there (specmesh.v1.VerifierService), a draft service was expected"
    async with server_of("specmesh.v1.VerifierService") as verifier:
        drafts = drafts_at(verifier.address)
        async with running(drafts):
            drafts.retarget(TARGET)
            await until(lambda: bool(drafts.replicas()) and listed(drafts).state == pb.ARM_STATE_INCOMPATIBLE)
            assert (listed(drafts).name, listed(drafts).reason) == ("good", expected)
            await verifier.stop(0)
            port = int(verifier.address.rpartition(":")[2])
            async with serving(FakeDraft(DRAFT_INFO), ports=[port]):
                await ready(drafts)
    assert warnings(caplog) == [expected]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["specmesh.v1.DraftService"], "a draft service is there (specmesh.v1.DraftService), a verifier was expected"),
        (["specmesh.v1.RouterService"], "a router is there (specmesh.v1.RouterService), a verifier was expected"),
        ([], "no service of SpecMesh is there, a verifier was expected"),
    ],
)
async def test_what_is_there_instead_of_a_verifier_is_said(
    names: list[str], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with server_of(*names) as server:
        verifiers = Verifiers(quick_config([server.address]), connect=connect, retarget=ignore_target)
        async with running(verifiers):
            await until(lambda: bool(verifiers.replicas()) and verifiers.replicas()[0].fault == expected)
            assert not verifiers.ready.is_set()
    assert warnings(caplog) == [expected]


async def test_one_that_did_not_fit_and_went_away_is_tried_again_at_intervals() -> None:
    """Which grow to the longest pause, 0.1 s here."""
    attempts: list[float] = []

    def noted(address: str) -> grpc.aio.Channel:
        attempts.append(time.monotonic())
        return connect(address)

    async with serving(FakeDraft(other(DRAFT_INFO, contract_version=99))) as (served,):
        drafts = drafts_at(served.address, noted)
        async with running(drafts):
            drafts.retarget(TARGET)
            await until(lambda: bool(drafts.replicas()) and listed(drafts).state == pb.ARM_STATE_INCOMPATIBLE)
            await served.stop()
            before = len(attempts)
            await until(lambda: len(attempts) >= before + 8)
    gaps = [later - earlier for earlier, later in pairwise(attempts[before:])]
    assert min(gaps) > 0.015
    assert min(gaps[-3:]) > 0.09

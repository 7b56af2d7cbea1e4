"""A verifier behind real gRPC and one peer of it."""

from collections.abc import AsyncIterator

import pytest
from verifier_parts import COUNTING
from verifier_server import Peer, Verifier, serving

from specmesh.verifier.config import LimitsConfig
from specmesh.verifier.target import TableTarget

LIMITS = LimitsConfig(max_prompt_tokens=40, max_open_chunks=4, max_stop_token_ids=3, max_lease_ms=60_000)


@pytest.fixture
async def verifier() -> AsyncIterator[Verifier]:
    async with serving(TableTarget(COUNTING, max_context_tokens=64), limits=LIMITS) as running:
        yield running


@pytest.fixture
async def peer(verifier: Verifier) -> AsyncIterator[Peer]:
    async with Peer(verifier.address) as connected:
        yield connected

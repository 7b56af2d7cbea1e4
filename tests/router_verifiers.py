"""Parts of tests of the router's verifiers: a fleet of fake ones, all connected."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from router_fakes import FakeVerifier, Served, connect, ignore_target, quick_config, running, serving, until

from specmesh.router.config import RouterConfig
from specmesh.router.verifiers import Verifiers


@asynccontextmanager
async def verifiers_of(*fakes: FakeVerifier, **settings: Any) -> AsyncIterator[tuple[Verifiers, list[Served]]]:
    """A fleet of these, all connected."""
    async with serving(*fakes) as servers:
        config: RouterConfig = quick_config([server.address for server in servers], **settings)
        verifiers = Verifiers(config, connect=connect, retarget=ignore_target)
        async with running(verifiers):
            await until(lambda: num_connected(verifiers) == len(fakes))
            yield verifiers, servers


def num_connected(verifiers: Verifiers) -> int:
    return sum(replica.connected for replica in verifiers.replicas())


def deadline() -> float:
    return time.monotonic() + 60

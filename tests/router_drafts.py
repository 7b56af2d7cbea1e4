"""Parts of tests of the router's drafts: a pool with fake replicas, and what is asked of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from router_fakes import (
    FakeDraft,
    Served,
    connect,
    other,
    quick_config,
    running,
    serving,
    until,
)
from router_parts import INFO, TARGET

from specmesh.router.config import PoolConfig
from specmesh.router.drafts import Drafted, Drafts
from specmesh.router.listing import list_arms
from specmesh.router.policies import PLAIN, Choice
from specmesh.router.session import Session
from specmesh.runtime.types import StepResult
from specmesh.v1 import router_service_pb2 as router_pb

DRAFT_INFO = other(INFO, model_digest="d" * 64, model_name="draft")


@asynccontextmanager
async def drafts_of(
    *fakes: FakeDraft, pool: str = "good", trust: str = "full", settings: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Drafts, list[Served]]]:
    """One pool of these replicas, all of them tried once."""
    async with serving(*fakes) as servers:
        addresses = tuple(server.address for server in servers)
        pools = [PoolConfig(name=pool, addresses=addresses, trust=trust)]  # type: ignore[arg-type]
        drafts = Drafts(quick_config(pools=pools, drafts=settings), connect=connect)
        async with running(drafts):
            drafts.retarget(TARGET)
            yield drafts, servers


async def ask(drafts: Drafts, session: Session, length: int = 4) -> Drafted:
    """One block from the first arm that is ready."""
    views = drafts.views(session)
    choice = Choice(views[0].arm, length) if views else PLAIN
    return await drafts.block(session, choice, views)


async def ready(drafts: Drafts, count: int = 1) -> None:
    await until(lambda: sum(replica.health.ready for replica in drafts.replicas()) == count)


def listed(drafts: Drafts) -> router_pb.DraftArm:
    (arm,) = list_arms(drafts, 0.0)
    return arm


def committed(session: Session, *token_ids: int, **fields: Any) -> StepResult:
    result = StepResult(session.session_id, session.position, token_ids, 0, 0, **fields)
    session.commit(result)
    return result

"""The mesh under test: started once, each service a process of its own."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
from mesh_calls import router_at, wait_ready
from mesh_processes import Running, Service, patient_router, pools_of
from mesh_tables import write_tables

from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

CONTEXT = 512
VOCABULARY = 8
HONEST = ("near", "far", "look")


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One verifier with a table target, three honest drafts and a router with policy `fixed`, length 8."""
    folder = tmp_path_factory.mktemp("mesh")
    tables = write_tables(folder, VOCABULARY, seed=11)
    with ExitStack() as stack:
        verifier = stack.enter_context(
            Service("verifier", folder, model=f"table:{tables.target}", table__max_context_tokens=CONTEXT)
        )
        drafts = {
            "near": stack.enter_context(Service("draft", folder, kind="table", drafter__path=tables.near)),
            "far": stack.enter_context(Service("draft", folder, kind="table", drafter__path=tables.far)),
            "look": stack.enter_context(Service("draft", folder, kind="lookup")),
        }
        router = stack.enter_context(
            patient_router(folder, verifier, pools_of(drafts), policy__settings__fixed_length=8)
        )
        yield Running(folder, tables, verifier, drafts, router)


@pytest.fixture
async def router(mesh: Running) -> AsyncIterator[RouterServiceStub]:
    """A stub of the mesh's router, all arms ready."""
    async with router_at(mesh.router.address) as stub:
        await wait_ready(stub, *HONEST)
        yield stub

"""Streams that their clients leave end in the router without a complaint."""

import asyncio

from mesh_calls import request
from mesh_processes import Running

from specmesh.v1.router_service_pb2_grpc import RouterServiceStub


async def test_a_client_that_leaves_is_no_error_of_the_router(mesh: Running, router: RouterServiceStub) -> None:
    """Also when it leaves while the router writes to it."""

    async def leave() -> None:
        call = router.Generate(request(max_output_tokens=400, arms=["near"]), timeout=60)
        tokens = 0
        async for event in call:
            tokens += len(event.delta.token_ids)
            if tokens >= 3:
                break
        call.cancel()

    before = len(mesh.router.log())
    for _ in range(5):
        await asyncio.gather(*(leave() for _ in range(10)))
    assert '"level": "ERROR"' not in mesh.router.log()[before:]

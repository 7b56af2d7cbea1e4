"""What a client sees before the first token: nothing at all, so that gRPC's own retry covers the wait for it."""

import asyncio
from typing import Any

import grpc
import pytest
from mesh_calls import refused, request, router_at
from mesh_processes import Running, Service
from router_fakes import FakeVerifier, Send, plain_step, scripted_info, serving, step_failure, until

from specmesh.v1 import verifier_service_pb2 as verifier_pb

INFO = scripted_info(max_context_tokens=1_000)


@pytest.mark.parametrize("succeeds", [True, False])
async def test_no_header_and_no_event_comes_before_the_first_token(mesh: Running, succeeds: bool) -> None:
    """C41, the server's part: headers would end gRPC's own retry. A failure then is a status and nothing else."""
    goes_on = asyncio.Event()

    async def waits(entry: verifier_pb.VerifyRequestEntry, send: Send) -> None:
        await goes_on.wait()
        await (plain_step(entry, send) if succeeds else send(step_failure(entry, "NON_FINITE_LOGITS")))

    verifier = FakeVerifier(INFO, waits)
    async with serving(verifier) as (server,):
        with Service("router", mesh.folder, verifiers=[server.address], policy__name="fixed") as router:
            address = await asyncio.to_thread(lambda: router.address)
            async with router_at(address) as stub:
                call: Any = stub.Generate(request(), timeout=20)
                headers = asyncio.ensure_future(call.initial_metadata())
                reading = asyncio.ensure_future(call.read())
                await until(lambda: bool(verifier.entries))
                done, _ = await asyncio.wait({headers, reading}, timeout=0.5)
                assert not done
                goes_on.set()
                if succeeds:
                    assert (await reading).HasField("started")
                    assert (await call.read()).delta.token_ids
                else:
                    error = await refused(reading)
                    assert error.code() is grpc.StatusCode.INTERNAL
                    assert not error.initial_metadata()
                await asyncio.gather(headers, return_exceptions=True)

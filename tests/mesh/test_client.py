"""The shipped client against a running mesh: retries that nobody sees, and streams that are taken up again."""

import asyncio
import time

import pytest
from mesh_processes import Running, Service

from specmesh.client import AsyncClient, Delta, Overloaded


def start(mesh: Running, **settings: object) -> Service:
    return Service("router", mesh.folder, verifiers=[mesh.verifier.address], **settings)


@pytest.fixture
def port(mesh: Running) -> int:
    """A port that is free."""
    with start(mesh) as router:
        return int(router.address.rpartition(":")[2])


async def test_a_broken_stream_is_resumed_to_the_same_text(mesh: Running, port: int) -> None:
    """C41: the router is killed in the middle; under COUPLED the client ends with the text of its seed."""
    slow = Service("verifier", mesh.folder, model=f"table:{mesh.tables.target}", table__delay_ms=10)
    with slow:
        settings = {"verifiers": [slow.address], "server__port": port}
        first = Service("router", mesh.folder, **settings)
        with first:
            async with AsyncClient(first.address) as client:
                whole = await client.generate([0, 1], max_output_tokens=60, seed=7)
                token_ids: list[int] = []
                second = None
                async for event in client.stream([0, 1], max_output_tokens=60, seed=7, timeout=60):
                    if isinstance(event, Delta):
                        token_ids += event.token_ids
                        if len(token_ids) >= 10 and second is None:
                            first.kill()
                            second = Service("router", mesh.folder, **settings)
                            await asyncio.to_thread(lambda started=second: started.address)
                assert second is not None
                with second:
                    assert tuple(token_ids) == tuple(whole.token_ids)


async def test_a_refusal_for_now_is_repeated_after_the_pushback(mesh: Running) -> None:
    """C41: RESOURCE_EXHAUSTED before the first token; gRPC's own retry waits as told and succeeds unseen."""
    limits = {"limits__max_sessions": 1, "limits__max_queued": 0, "limits__retry_seconds": 0.4}
    slow = Service("verifier", mesh.folder, model=f"table:{mesh.tables.target}", table__delay_ms=20)
    with slow, Service("router", mesh.folder, verifiers=[slow.address], **limits) as router:
        async with AsyncClient(router.address, resumes=0) as client:
            stream = client.stream([0, 1], max_output_tokens=30)
            await anext(stream)
            started = time.monotonic()
            answer = await client.generate([0, 1], max_output_tokens=5)
            assert len(answer.token_ids) == 5
            assert time.monotonic() - started >= 0.4
            await stream.aclose()
        async with AsyncClient(router.address, resumes=0, timeout=20) as client:
            stream = client.stream([0, 1], max_output_tokens=2000)
            await anext(stream)
            with pytest.raises(Overloaded) as caught:
                await client.generate([0, 1], max_output_tokens=5)
            assert caught.value.retry_after == pytest.approx(0.4)
            await stream.aclose()

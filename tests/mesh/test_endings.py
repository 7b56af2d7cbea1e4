"""Services that are told to stop in the middle of a text, and clients that leave in the middle of a step."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from mesh_calls import Generation, arms_of, at_most, generate, refused, request, router_at, wait_ready
from mesh_processes import Running, Service
from router_fakes import FakeDraft, FakeVerifier, Send, drafted, ended, scripted_info, serving, until, well_behaved

from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1 import verifier_service_pb2 as verifier_pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

INFO = scripted_info(max_context_tokens=10_000)


def router_of(mesh: Running, verifiers: Sequence[str], pools: Sequence[dict[str, object]]) -> Service:
    settings = {"policy__name": "fixed", "drafts__block_deadline_ms": 2000, "discovery_seconds": 0.3}
    return Service("router", mesh.folder, verifiers=list(verifiers), pools=list(pools), **settings)


async def at_token(
    stub: RouterServiceStub, count: int, happens: Callable[[], object], **fields: Any
) -> tuple[Generation, "asyncio.Task[object]"]:
    """A whole generation during which something happens at its `count`-th token."""
    generation, happening = Generation(), None
    async for event in stub.Generate(request(**fields), timeout=60):
        generation.take(event)
        if len(generation.token_ids) >= count and happening is None:
            happening = asyncio.create_task(asyncio.to_thread(happens))
    assert happening is not None
    return generation, happening


async def test_a_verifier_that_drains_finishes_what_it_has(mesh: Running) -> None:
    """C32: SIGTERM of the verifier at token 5 of 200: all arrive, new calls are UNAVAILABLE, it exits with 0."""
    model = f"table:{mesh.tables.target}"
    with (
        Service("verifier", mesh.folder, model=model, table__delay_ms=15) as verifier,
        router_of(mesh, [verifier.address], mesh.pools("near")) as router,
    ):
        async with router_at(router.address) as stub:
            await wait_ready(stub, "near")
            fields: dict[str, Any] = {"max_output_tokens": 200, "sampling": {"seed": 4}}
            whole = await generate(stub, request(**fields))
            answer, exiting = await at_token(stub, 5, verifier.terminate, **fields)
            assert answer.summary == whole.summary
            error = await refused(generate(stub, request(), timeout=10))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert await exiting == 0


async def test_a_draft_that_drains_costs_no_token(mesh: Running) -> None:
    """C32: SIGTERM of the only draft at token 5 of 200: the text is its seed's own, and the draft exits with 0."""
    path = mesh.tables.near
    model = f"table:{mesh.tables.target}"
    with (
        Service("verifier", mesh.folder, model=model, table__delay_ms=15) as verifier,
        Service("draft", mesh.folder, kind="table", drafter__path=path) as draft,
        router_of(mesh, [verifier.address], [{"name": "only", "addresses": [draft.address]}]) as router,
    ):
        async with router_at(router.address) as stub:
            await wait_ready(stub, "only")
            fields: dict[str, Any] = {"max_output_tokens": 200, "sampling": {"seed": 4}}
            whole = await generate(stub, request(**fields))
            answer, exiting = await at_token(stub, 5, draft.terminate, **fields)
            assert answer.summary == whole.summary
            assert await exiting == 0


async def never_ends(entry: draft_pb.DraftRequestEntry, send: Send) -> None:
    """A draft that hangs after its first token."""
    await send(drafted(entry, 0, 10))


async def no_answer(entry: verifier_pb.VerifyRequestEntry, send: Send) -> None:
    """A forward that takes for ever."""


async def all_at_once(entry: draft_pb.DraftRequestEntry, send: Send) -> None:
    """A whole block in one message."""
    await send(drafted(entry, 0, *range(10, 10 + entry.block_length)))
    await send(ended(entry))


@pytest.mark.parametrize("place", ["draft", "verify", "between"])
async def test_a_client_that_leaves_frees_everything_downstream(mesh: Running, place: str) -> None:
    """C22: by cancel or by deadline, wherever its step is: drafts and verifier are told to close within a second."""
    draft = FakeDraft(INFO, {"draft": never_ends, "verify": all_at_once, "between": well_behaved}[place])
    verifier = FakeVerifier(INFO)
    if place == "verify":
        verifier.script = no_answer
    async with serving(draft, verifier) as (draft_server, verifier_server):
        pools = [{"name": "pool", "addresses": [draft_server.address]}]
        with router_of(mesh, [verifier_server.address], pools) as router:
            address = await asyncio.to_thread(lambda: router.address)
            async with router_at(address) as stub:
                await wait_ready(stub, "pool")
                for way, count in (("cancel", 20), ("deadline", 40)):
                    await at_most(20, [leave(stub, way) for _ in range(20)])
                    opened = {header.session_id for header, _ in verifier.opened}
                    asked = {entry.session_id for entry in draft.entries}
                    assert len(opened) == count
                    assert asked
                    async with asyncio.timeout(1):
                        await until(lambda: opened <= verifier.closed and asked <= draft.closed)  # noqa: B023  awaited here
                draft.script, verifier.script = well_behaved, FakeVerifier(INFO).script
                answer = await generate(stub, request(arms=[]))
                assert len(answer.token_ids) == 20


async def test_a_client_that_never_reads_loses_its_place(mesh: Running) -> None:
    """Long before its deadline: the verifier is told to close, the next in the queue is served, and it learns why."""
    verifier = FakeVerifier(INFO)
    limits = {"max_sessions": 1, "max_unread_bytes": 1024}
    async with serving(verifier) as (server,):
        settings = {"verifiers": [server.address], "server__max_unread_seconds": 1.0, "limits": limits}
        with Service("router", mesh.folder, policy__name="fixed", **settings) as router:
            address = await asyncio.to_thread(lambda: router.address)
            async with grpc.aio.insecure_channel(address, [("grpc.http2.bdp_probe", 0)]) as channel:
                stub = RouterServiceStub(channel)
                unread = stub.Generate(request(max_output_tokens=9_000, output={"step_reports": True}), timeout=3600)
                await until(lambda: bool(verifier.opened))
                answer = await generate(stub, request(), timeout=20)
                assert len(answer.token_ids) == 20
                assert {header.session_id for header, _ in verifier.opened} <= verifier.closed
                partial = Generation()
                error = await refused(take_all(unread, partial))
                assert "server.max_unread_seconds" in (error.details() or "")
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                rest = await generate(
                    stub, request(max_output_tokens=9_000, continuation_token_ids=partial.token_ids), timeout=60
                )
                assert len(partial.token_ids) + len(rest.token_ids) == 9_000


async def test_a_unary_output_that_no_message_can_hold_ends_when_it_is_too_large(mesh: Running) -> None:
    """Long before its last token: the verifier is told to close, and the answer says which option it is about."""
    verifier = FakeVerifier(INFO)
    async with serving(verifier) as (server,):
        settings = {"verifiers": [server.address], "server__max_message_bytes": 65536}
        with Service("router", mesh.folder, policy__name="fixed", **settings) as router:
            address = await asyncio.to_thread(lambda: router.address)
            async with router_at(address) as stub:
                output = {"unary": True, "step_reports": True}
                error = await refused(generate(stub, request(max_output_tokens=9_000, output=output), timeout=60))
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert (error.details() or "").startswith("output.unary: the output has at least 65")
                await until(lambda: {header.session_id for header, _ in verifier.opened} <= verifier.closed)
                assert len((await generate(stub, request())).token_ids) == 20


async def take_all(call: grpc.aio.UnaryStreamCall, generation: Generation) -> None:
    """Read to the end. Raises `AioRpcError`."""
    async for event in call:
        generation.take(event)


async def leave(stub: RouterServiceStub, way: str) -> None:
    """A client that goes after 0.4 s, long before its 9,000 tokens."""
    message = request(max_output_tokens=9_000)
    if way == "deadline":
        error = await refused(generate(stub, message, timeout=0.4))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return
    call = stub.Generate(message, timeout=60)
    with suppress(asyncio.CancelledError, TimeoutError):
        async with asyncio.timeout(0.4):
            async for _ in call:
                pass
    call.cancel()


async def test_a_session_of_a_draft_with_a_short_context_goes_on_without_it(mesh: Running) -> None:
    """C26: a draft whose context ends before the target's leaves that session, and no other."""
    model, path = f"table:{mesh.tables.target}", mesh.tables.near
    drafter = {"path": path, "max_context_tokens": 32}
    with (
        Service("verifier", mesh.folder, model=model) as verifier,
        Service("draft", mesh.folder, kind="table", drafter=drafter) as draft,
        router_of(mesh, [verifier.address], [{"name": "short", "addresses": [draft.address]}]) as router,
    ):
        async with router_at(router.address) as stub:
            await wait_ready(stub, "short")
            for seed in (1, 2):
                fields: dict[str, Any] = {"max_output_tokens": 80, "sampling": {"seed": seed}}
                plain = await generate(stub, request(arms=[], **fields))
                answer = await generate(stub, request(output={"step_reports": True}, **fields))
                assert answer.summary == plain.summary
                position, drafted_to = 2, 0
                for step in answer.steps:
                    drafted_to = position + step.drafted_count if step.drafted_count else drafted_to
                    position += step.emitted_count
                assert 20 < drafted_to <= 32
                assert [step.fallback_reason for step in answer.steps[-10:-1]] == [pb.FALLBACK_REASON_NO_ARM] * 9
                assert (await arms_of(stub))["short"].state == pb.ARM_STATE_READY


async def test_a_long_generation_of_one_caller_is_not_cut_by_the_end_of_another(mesh: Running) -> None:
    """C22: 20 neighbours that cancel leave the text of a seed as it is alone."""
    with router_of(mesh, [mesh.verifier.address], mesh.pools("near")) as router:
        async with router_at(router.address) as stub:
            await wait_ready(stub, "near")
            message = request(max_output_tokens=200, sampling={"seed": 11})
            alone = await generate(stub, message)
            together = asyncio.create_task(generate(stub, message))
            for _ in range(20):
                call = stub.Generate(request(max_output_tokens=400), timeout=60)
                await call.read()
                call.cancel()
            assert (await together).summary == alone.summary

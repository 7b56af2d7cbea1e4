"""A session keeps its seat, and survives the loss of it; no token is emitted twice, nothing stays behind."""

import asyncio
import time
from typing import Any

import grpc
import pytest
from router_fakes import (
    FakeVerifier,
    Send,
    connect,
    ignore_target,
    other,
    plain_step,
    quick_config,
    running,
    serving,
    step_failure,
    until,
)
from router_parts import INFO, make_session
from router_verifiers import deadline, num_connected, verifiers_of

from specmesh.router.session import Session
from specmesh.router.verifiers import Verifiers
from specmesh.runtime.errors import DeadlinePassed, MeshError, NonFiniteLogits, NoVerifier, Overloaded
from specmesh.runtime.status import error_metadata
from specmesh.runtime.types import Block, StepResult
from specmesh.v1 import verifier_service_pb2 as pb


async def step(verifiers: Verifiers, session: Session, *drafts: int) -> StepResult:
    result = await verifiers.verify(session, Block(session.position, drafts))
    session.commit(result)
    return result


async def test_a_step_reaches_the_verifier_and_its_outcome_the_session() -> None:
    fake = FakeVerifier(INFO)
    async with verifiers_of(fake) as (verifiers, _):
        session = make_session()
        session.traceparent = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
        await verifiers.open(session, deadline())
        header, context = fake.opened[0]
        assert context == (5, 6, 7)
        assert header.prompt_length == 3
        assert header.verify_key == session.verify_key
        assert (await step(verifiers, session, 8, 9)).token_ids == (8, 9, 53)
        assert (await step(verifiers, session)).token_ids == (56,)
        assert fake.entries[0].traceparent == session.traceparent
        assert fake.entries[0].remaining_ms > 0
        verifiers.close(session)
        await until(lambda: header.session_id in fake.closed)


async def test_a_lost_verifier_is_replaced_and_the_step_repeated() -> None:
    """The reply is lost with the connection: the same block is verified elsewhere, from the same context."""
    hit = asyncio.Event()

    async def hangs(entry: pb.VerifyRequestEntry, send: Send) -> None:
        if entry.position > 3:
            hit.set()
            await asyncio.Event().wait()
        await plain_step(entry, send)

    first, second = FakeVerifier(INFO, hangs), FakeVerifier(INFO, hangs)
    async with verifiers_of(first, second) as (verifiers, servers):
        session = make_session()
        await verifiers.open(session, deadline())
        await step(verifiers, session)
        stepping = asyncio.create_task(step(verifiers, session, 8))
        await hit.wait()
        at = 0 if first.opened else 1
        (first, second)[1 - at].script = plain_step
        await servers[at].stop()
        assert (await stepping).token_ids == (8, 54)
        header, context = (first, second)[1 - at].opened[0]
        assert context == (5, 6, 7, 53)
        assert header.prompt_length == 3
        before = (first, second)[at].opened[0][0]
        assert header.session_id != before.session_id
        assert header.priority > before.priority, "it goes before new sessions"
        assert session.context == [5, 6, 7, 53, 8, 54]


async def test_a_session_waits_for_the_only_verifier_to_come_back() -> None:
    fake = FakeVerifier(INFO)
    async with verifiers_of(fake) as (verifiers, (server,)):
        session = make_session()
        await verifiers.open(session, deadline())
        await server.stop()
        await until(lambda: not num_connected(verifiers))
        stepping = asyncio.create_task(step(verifiers, session))
        await server.start()
        assert (await stepping).token_ids == (53,)
        lost = fake.opened[0][0].session_id
        await until(lambda: lost in fake.closed)


async def test_without_a_verifier_new_sessions_are_refused_at_once() -> None:
    fake = FakeVerifier(INFO)
    async with verifiers_of(fake) as (verifiers, (server,)):
        await server.stop()
        await until(lambda: not num_connected(verifiers))
        with pytest.raises(NoVerifier):
            await verifiers.open(make_session(), deadline())


async def test_resumes_are_bounded() -> None:
    async def forgets(entry: pb.VerifyRequestEntry, send: Send) -> None:
        await send(step_failure(entry, "UNKNOWN_SESSION"))

    fake = FakeVerifier(INFO, forgets)
    async with verifiers_of(fake, sessions={"max_resumes": 3}) as (verifiers, _):
        session = make_session()
        await verifiers.open(session, deadline())
        with pytest.raises(NoVerifier, match="max_resumes"):
            await step(verifiers, session)
        assert len(fake.opened) == 4


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("NON_FINITE_LOGITS", NonFiniteLogits),
        ("INTERNAL", MeshError),
        ("OVERLOADED", Overloaded),
        ("DEADLINE_EXCEEDED", DeadlinePassed),
    ],
)
async def test_a_failed_entry_ends_the_session(reason: str, error: type[MeshError]) -> None:
    """C6, the router's part: that session ends; the stream and its neighbours go on."""

    async def fails(entry: pb.VerifyRequestEntry, send: Send) -> None:
        if entry.token_ids:
            await send(step_failure(entry, reason))
        else:
            await plain_step(entry, send)

    async with verifiers_of(FakeVerifier(INFO, fails)) as (verifiers, _):
        session, neighbour = make_session(), make_session()
        neighbour.session_id += 1
        await verifiers.open(session, deadline())
        await verifiers.open(neighbour, deadline())
        with pytest.raises(error):
            await step(verifiers, session, 8)
        assert (await step(verifiers, neighbour)).token_ids == (53,)


def refuse(error: MeshError) -> Any:
    async def on_open(context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(error.status, error.message, error_metadata(error))

    return on_open


async def test_a_full_verifier_sends_the_session_to_another_one() -> None:
    full, free = FakeVerifier(INFO), FakeVerifier(INFO)
    full.on_open = refuse(Overloaded("memory", retry_after=3.0))
    async with verifiers_of(full, free) as (verifiers, _):
        for number in range(4):
            session = make_session()
            session.session_id = number
            await verifiers.open(session, deadline())
        assert len(free.opened) == 4
        free.on_open = full.on_open
        with pytest.raises(Overloaded) as caught:
            await verifiers.open(make_session(), deadline())
        assert caught.value.retry_after == 3.0
        refused = {header.session_id for header, _ in full.opened}
        await until(lambda: refused <= full.closed)


async def test_sessions_go_to_the_least_loaded_verifier() -> None:
    fakes = [FakeVerifier(INFO), FakeVerifier(INFO)]
    async with verifiers_of(*fakes) as (verifiers, _):
        sessions = []
        for number in range(6):
            session = make_session()
            session.session_id = number
            await verifiers.open(session, deadline())
            sessions.append(session)
        assert [len(fake.opened) for fake in fakes] == [3, 3]
        for session in sessions[::2]:
            verifiers.close(session)
        assert sorted(replica.num_sessions for replica in verifiers.replicas()) == [0, 3]
        late = make_session()
        late.session_id = 100
        await verifiers.open(late, deadline())
        assert sorted(replica.num_sessions for replica in verifiers.replicas()) == [1, 3]


async def test_a_draining_verifier_gets_no_new_sessions() -> None:
    async def draining(entry: pb.VerifyRequestEntry, send: Send) -> None:
        await send(step_failure(entry, "DRAINING"))

    leaving, staying = FakeVerifier(INFO, draining), FakeVerifier(INFO, draining)
    async with verifiers_of(leaving, staying) as (verifiers, _):
        session = make_session()
        await verifiers.open(session, deadline())
        home = leaving if leaving.opened else staying
        (staying if home is leaving else leaving).script = plain_step
        assert (await step(verifiers, session)).token_ids == (53,)
        for number in range(3):
            new = make_session()
            new.session_id = number
            await verifiers.open(new, deadline())
        assert len(home.opened) == 1


async def test_a_cancelled_open_leaves_nothing_behind() -> None:
    """C22: the client goes while its session is being admitted."""
    fake = FakeVerifier(INFO)

    async def forever(context: Any) -> None:
        del context
        await asyncio.Event().wait()

    fake.on_open = forever
    async with verifiers_of(fake) as (verifiers, _):
        opening = asyncio.create_task(verifiers.open(make_session(), deadline()))
        await until(lambda: bool(fake.opened))
        opening.cancel()
        await asyncio.wait({opening})
        session_id = fake.opened[0][0].session_id
        await until(lambda: session_id in fake.closed)
        assert verifiers.replicas()[0].num_sessions == 0


async def test_a_session_never_goes_on_with_another_model() -> None:
    """The only verifier comes back with other weights: the session ends, new ones are served."""
    fake = FakeVerifier(INFO)
    async with verifiers_of(fake, sessions={"resume_seconds": 1.0}) as (verifiers, (server,)):
        session = make_session()
        await verifiers.open(session, deadline())
        await server.stop()
        await until(lambda: not num_connected(verifiers))
        fake.info = other(INFO, model_digest="b" * 64)
        await server.start()
        with pytest.raises(NoVerifier):
            await step(verifiers, session)
        assert len(fake.opened) == 1


async def test_a_verifier_of_another_model_is_left_out() -> None:
    ours, theirs = FakeVerifier(INFO), FakeVerifier(other(INFO, model_digest="b" * 64))
    async with serving(ours, theirs) as servers:
        config = quick_config([server.address for server in servers])
        verifiers = Verifiers(config, connect=connect, retarget=ignore_target)
        async with running(verifiers):
            await until(lambda: any("serves model" in replica.fault for replica in verifiers.replicas()))
            assert num_connected(verifiers) == 1


async def test_another_contract_is_never_served() -> None:
    async with serving(FakeVerifier(other(INFO, contract_version=2))) as (server,):
        verifiers = Verifiers(quick_config([server.address]), connect=connect, retarget=ignore_target)
        async with running(verifiers):
            await until(lambda: "contract 2" in "".join(replica.fault for replica in verifiers.replicas()))
            assert not verifiers.ready.is_set()


async def test_a_new_model_is_served_when_every_verifier_of_the_old_one_is_gone() -> None:
    served: list[str] = []
    fake = FakeVerifier(INFO)
    async with serving(fake) as (server,):
        verifiers = Verifiers(
            quick_config([server.address]),
            connect=connect,
            retarget=lambda target, _: served.append(target.info.model_digest),
        )
        async with running(verifiers):
            await verifiers.ready.wait()
            await server.stop()
            await until(lambda: not num_connected(verifiers))
            fake.info = other(INFO, model_digest="b" * 64)
            await server.start()
            await until(lambda: num_connected(verifiers) == 1)
            assert served == ["a" * 64, "b" * 64]


async def test_a_verifier_lost_while_it_opens_a_session_is_no_silence() -> None:
    """Its stream ends first and the connection is given up: the call in flight is cancelled, and not by a client."""
    opening, over = asyncio.Event(), asyncio.Event()

    class Vanishing(FakeVerifier):
        async def Verify(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
            await over.wait()

    async def never(context: Any) -> None:
        opening.set()
        await asyncio.Event().wait()

    vanishing, steady = Vanishing(INFO), FakeVerifier(INFO)
    vanishing.on_open = never
    async with verifiers_of(vanishing, steady) as (verifiers, _):
        sitting = []
        for number in range(2):  # one on each
            session = make_session()
            session.session_id = number
            sitting.append(asyncio.create_task(verifiers.open(session, deadline())))
        await opening.wait()
        over.set()
        await asyncio.gather(*sitting)
        assert len(steady.opened) == 2


@pytest.mark.parametrize("days", [60, 365_000])
async def test_a_deadline_of_years_is_served(days: int) -> None:
    fake = FakeVerifier(INFO)
    async with verifiers_of(fake) as (verifiers, _):
        session = make_session()
        await verifiers.open(session, time.monotonic() + days * 86400.0)
        assert (await step(verifiers, session)).token_ids == (53,)
        assert fake.entries[0].remaining_ms == 2**32 - 1

"""Plain tokens asked for several at a time: no round trip for each, and nothing else is different."""

import asyncio
from typing import Any

import pytest
from router_fakes import FakeVerifier, Send, other, plain_step, step_answer, step_failure, until
from router_parts import INFO, make_plan, make_session
from router_verifiers import deadline, num_connected, verifiers_of

from specmesh.router.policies import PLAIN, Arm, ArmView, Choice, StepView
from specmesh.router.policies.fixed import FixedPolicy
from specmesh.router.policies.settings import PolicySettings
from specmesh.router.run import run_length
from specmesh.router.session import Session
from specmesh.router.verifiers import Verifiers
from specmesh.runtime.errors import NonFiniteLogits
from specmesh.runtime.types import Block
from specmesh.v1 import router_service_pb2
from specmesh.v1 import verifier_service_pb2 as pb

RUNS = other(INFO, max_run_tokens=8)
ARM = ArmView(Arm("good", "a" * 64), 8)


def view(*arms: ArmView, max_block_length: int = 8) -> StepView:
    return StepView(session_id=1, position=3, max_block_length=max_block_length, arms=arms)


async def plain_run(entry: pb.VerifyRequestEntry, send: Send) -> None:
    """An answer for each token of the run, as a verifier gives them."""
    for _ in range(max(entry.run_count, 1)):
        await plain_step(entry, send)
        entry.position += 1


async def take(verifiers: Verifiers, session: Session, run_count: int = 0) -> int:
    """One plain step; the token it emits."""
    result = await verifiers.verify(session, Block(session.position, run_count=run_count))
    session.commit(result)
    (token,) = result.token_ids
    return token


def sent(fake: FakeVerifier) -> list[int]:
    return [entry.run_count for entry in fake.entries]


async def test_a_run_is_asked_for_once_and_answered_step_by_step() -> None:
    fake = FakeVerifier(RUNS, plain_run)
    async with verifiers_of(fake) as (verifiers, _):
        session = make_session()
        await verifiers.open(session, deadline())
        for left in (3, 2, 1, 0):
            assert await take(verifiers, session, 4) == 50 + session.position - 1
            assert verifiers.running(session) == (left > 0)
        assert await take(verifiers, session) == 57
        assert sent(fake) == [4, 0]
        assert session.context == [5, 6, 7, 53, 54, 55, 56, 57]


async def test_answers_may_come_before_they_are_waited_for() -> None:
    fake = FakeVerifier(RUNS, plain_run)
    async with verifiers_of(fake) as (verifiers, _):
        session = make_session()
        await verifiers.open(session, deadline())
        await take(verifiers, session, 3)
        neighbour = make_session()
        neighbour.session_id += 1
        await verifiers.open(neighbour, deadline())
        await take(verifiers, neighbour)  # by now all of the run has been received
        assert [await take(verifiers, session), await take(verifiers, session)] == [54, 55]


@pytest.mark.parametrize(("most", "asked"), [(0, [0, 0]), (1, [0, 0]), (2, [2])])
async def test_a_verifier_is_asked_for_no_longer_run_than_it_takes(most: int, asked: list[int]) -> None:
    """One from before runs says nothing of them: it is asked step by step."""
    fake = FakeVerifier(other(INFO, max_run_tokens=most), plain_run)
    async with verifiers_of(fake) as (verifiers, _):
        session = make_session()
        await verifiers.open(session, deadline())
        assert [await take(verifiers, session, 8), await take(verifiers, session, 8)] == [53, 54]
        assert sent(fake) == asked


async def test_a_verifier_lost_in_a_run_costs_no_token_and_repeats_none() -> None:
    """What had arrived counts; the rest is asked for elsewhere, from where the text stands."""
    stuck = asyncio.Event()

    async def two_then_silence(entry: pb.VerifyRequestEntry, send: Send) -> None:
        for _ in range(2):
            await plain_step(entry, send)
            entry.position += 1
        stuck.set()
        await asyncio.Event().wait()

    first, second = FakeVerifier(RUNS, two_then_silence), FakeVerifier(RUNS, two_then_silence)
    async with verifiers_of(first, second) as (verifiers, servers):
        session = make_session()
        await verifiers.open(session, deadline())
        await take(verifiers, session, 4)
        await stuck.wait()
        at = 0 if first.opened else 1
        (first, second)[1 - at].script = plain_run
        await servers[at].stop()
        await until(lambda: num_connected(verifiers) == 1)
        assert [await take(verifiers, session, 4) for _ in range(3)] == [54, 55, 56]
        assert (first, second)[1 - at].opened[0][1] == (5, 6, 7, 53, 54)
        assert session.context == [5, 6, 7, 53, 54, 55, 56]


async def test_a_run_that_fails_fails_the_session_and_nobody_else() -> None:
    async def fails_second(entry: pb.VerifyRequestEntry, send: Send) -> None:
        await plain_step(entry, send)
        if entry.run_count:
            entry.position += 1
            await send(step_failure(entry, "NON_FINITE_LOGITS"))

    async with verifiers_of(FakeVerifier(RUNS, fails_second)) as (verifiers, _):
        session, neighbour = make_session(), make_session()
        neighbour.session_id += 1
        await verifiers.open(session, deadline())
        await verifiers.open(neighbour, deadline())
        await take(verifiers, session, 4)
        with pytest.raises(NonFiniteLogits):
            await take(verifiers, session)
        assert not verifiers.running(session)
        assert await take(verifiers, neighbour) == 53


async def test_a_run_ends_with_the_text() -> None:
    async def stops_second(entry: pb.VerifyRequestEntry, send: Send) -> None:
        await plain_step(entry, send)
        entry.position += 1
        await send(step_answer(entry, 2, finish_reason=router_service_pb2.FINISH_REASON_STOP, stop_token_id=2))

    fake = FakeVerifier(RUNS, stops_second)
    async with verifiers_of(fake) as (verifiers, _):
        session = make_session()
        await verifiers.open(session, deadline())
        await take(verifiers, session, 8)
        await take(verifiers, session, 8)
        assert session.finish_reason is not None
        assert not verifiers.running(session)
        assert sent(fake) == [8]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_session_closed_in_a_run_leaves_nothing_behind(cancelled: bool) -> None:
    waiting = asyncio.Event()

    async def one_then_silence(entry: pb.VerifyRequestEntry, send: Send) -> None:
        await plain_step(entry, send)
        waiting.set()

    fake = FakeVerifier(RUNS, one_then_silence)
    async with verifiers_of(fake) as (verifiers, _):
        session = make_session()
        await verifiers.open(session, deadline())
        await take(verifiers, session, 4)
        if cancelled:
            step = asyncio.create_task(take(verifiers, session, 4))
            await asyncio.sleep(0)
            step.cancel()
            await asyncio.wait({step})
        verifiers.close(session)
        (replica,) = verifiers.replicas()
        assert replica.num_waiting == 0
        await until(lambda: fake.opened[0][0].session_id in fake.closed)


@pytest.mark.parametrize(
    ("choice", "arms", "changes", "length"),
    [
        (PLAIN, (), {}, 4),
        (PLAIN, (ARM,), {}, 1),
        (Choice(None, 0, 3), (ARM,), {}, 3),
        (Choice(None, 0, 99), (ARM,), {}, 4),
        (Choice(ARM.arm, 2), (ARM,), {}, 1),
        (PLAIN, (), {"stop_strings": ("x",)}, 1),
        (PLAIN, (), {"max_output_tokens": 2}, 2),
        (PLAIN, (), {"max_output_tokens": 1}, 1),
    ],
)
def test_plain_steps_are_joined_where_nothing_is_to_be_chosen_between_them(
    choice: Choice, arms: tuple[ArmView, ...], changes: dict[str, Any], length: int
) -> None:
    """Without arms, or when the policy says so. A stop string may end the text at any token: there every one counts."""
    session = Session(make_plan(**changes), session_id=1, target=INFO, draw_key=lambda: 1)
    assert run_length(session, choice, view(*arms), most=4) == length


def test_fixed_at_length_zero_has_nothing_to_choose_ever() -> None:
    policy = FixedPolicy(seed=0, settings=PolicySettings(fixed_length=0))
    choice = policy.choose(view(ARM))
    assert choice == PLAIN
    assert choice.plain_steps > 8
    assert FixedPolicy(seed=0, settings=PolicySettings(fixed_length=4)).choose(view()).plain_steps == 1

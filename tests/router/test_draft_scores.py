"""Scores: asked for beside the steps, of warm drafts only, and never in the way of a block."""

import asyncio
import math

import pytest
from router_drafts import DRAFT_INFO, ask, committed, drafts_of, ready
from router_fakes import FakeDraft, Send, drafted, ended, until
from router_parts import make_session

from specmesh.router.drafts import Drafts
from specmesh.router.policies import Arm, Choice
from specmesh.router.session import Session
from specmesh.runtime.types import Rule, Sampling
from specmesh.v1 import draft_service_pb2 as pb


async def scoring(entry: pb.DraftRequestEntry, send: Send) -> None:
    """A block of what was asked for; each delta token scored as ln of 1 / its id."""
    for offset in range(entry.block_length):
        await send(drafted(entry, offset, 10 + offset))
    scores = [-math.log(token) for token in entry.delta_token_ids] if entry.want_scores else []
    await send(ended(entry, delta_logprobs=scores, delta_guessed=bytes(token % 2 for token in entry.delta_token_ids)))


def arm_of(drafts: Drafts) -> Arm:
    (arm,) = drafts.arms
    return arm


async def answered(drafts: Drafts, session: Session, fake: FakeDraft, count: int) -> None:
    """The fake has seen so many entries and nothing is awaited any more."""
    known = drafts._sessions[session.session_id]
    await until(lambda: len(fake.entries) == count and not known._asking)


async def test_a_first_ask_makes_an_idle_draft_warm_and_the_next_brings_scores() -> None:
    fake = FakeDraft(DRAFT_INFO, scoring)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        session = make_session()
        drafts.ask_scores(session, (arm_of(drafts),))
        await answered(drafts, session, fake, 1)
        assert drafts.take_scores(session) == {}
        committed(session, 20, 31)
        drafts.ask_scores(session, (arm_of(drafts),))
        await answered(drafts, session, fake, 2)
        scores = drafts.take_scores(session)[arm_of(drafts)]
        assert (scores.start, scores.guessed) == (3, (False, True))
        assert scores.logprobs == pytest.approx((-math.log(20), -math.log(31)))
        assert drafts.take_scores(session) == {}
        assert [(entry.block_length, entry.want_scores) for entry in fake.entries] == [(0, False), (0, True)]


@pytest.mark.parametrize("wanted", [False, True])
async def test_the_arm_that_drafts_scores_what_was_emitted_before_its_block(wanted: bool) -> None:
    """Once it is warm, and only for a policy that learns from scores."""
    fake = FakeDraft(DRAFT_INFO, scoring)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        session = make_session()
        views, choice = drafts.views(session), Choice(arm_of(drafts), 2)
        await drafts.block(session, choice, views, want_scores=wanted)
        assert drafts.take_scores(session) == {}
        committed(session, 10, 31)
        assert (await drafts.block(session, choice, views, want_scores=wanted)).block.token_ids == (10, 11)
        scores = drafts.take_scores(session)
        assert [each.guessed for each in scores.values()] == ([(False, True)] if wanted else [])


async def test_a_block_does_not_wait_for_scores_that_are_late() -> None:
    release = asyncio.Event()

    async def slow_scores(entry: pb.DraftRequestEntry, send: Send) -> None:
        if entry.block_length == 0:
            await release.wait()
        await scoring(entry, send)

    fake = FakeDraft(DRAFT_INFO, slow_scores)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        session = make_session()
        drafts.ask_scores(session, (arm_of(drafts),))
        await until(lambda: len(fake.entries) == 1)
        committed(session, 20)
        assert (await ask(drafts, session)).block.token_ids == (10, 11, 12, 13)
        assert fake.entries[1].delta_token_ids == [20]
        release.set()
        committed(session, 10, 40)
        assert (await ask(drafts, session)).block.token_ids == (10, 11, 12, 13)
        assert drafts.replicas()[0].health.ready


async def test_scores_of_another_number_than_was_asked_for_are_not_believed() -> None:
    async def generous(entry: pb.DraftRequestEntry, send: Send) -> None:
        await send(ended(entry, delta_logprobs=[0.0] * 7))

    fake = FakeDraft(DRAFT_INFO, generous)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        session = make_session()
        for count in (1, 2):
            drafts.ask_scores(session, (arm_of(drafts),))
            await answered(drafts, session, fake, count)
            committed(session, 20)
        assert drafts.take_scores(session) == {}


async def test_a_session_that_ends_waits_for_no_scores() -> None:
    async def silent(entry: pb.DraftRequestEntry, send: Send) -> None:
        del entry, send

    fake = FakeDraft(DRAFT_INFO, silent)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        session = make_session()
        drafts.ask_scores(session, (arm_of(drafts),))
        await until(lambda: len(fake.entries) == 1)
        (task,) = drafts._sessions[session.session_id]._asking.values()
        drafts.close(session)
        await asyncio.wait({task}, timeout=5)
        assert task.cancelled()
        await until(lambda: session.session_id in fake.closed)
        assert drafts.replicas()[0].num_sessions == 0


async def test_an_arm_that_is_gone_is_not_asked() -> None:
    fake = FakeDraft(DRAFT_INFO, scoring)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        session = make_session()
        drafts.ask_scores(session, (Arm("gone", "0" * 64),))
        assert drafts.take_scores(session) == {}
        assert fake.entries == []


@pytest.mark.parametrize(
    ("sampling", "rule", "asked", "sent"),
    [
        (Sampling(), Rule.BLOCK, None, 0),
        (Sampling(), Rule.TOKEN, 3, 3),
        (Sampling(), Rule.COUPLED, None, None),
        (Sampling(temperature=0.0), Rule.BLOCK, None, None),
    ],
)
def test_a_verifier_is_asked_for_log_probabilities_where_scores_need_them(
    sampling: Sampling, rule: Rule, asked: int | None, sent: int | None
) -> None:
    plan = make_session(sampling=sampling, rule=rule, logprobs=asked).plan
    for wanted, expected in ((True, sent), (False, asked)):
        session = Session(plan, session_id=1, target=DRAFT_INFO, draw_key=lambda: 5, want_logprobs=wanted)
        assert session.spec(session_id=1, peer="p", lease_ms=1, priority=0).logprobs == expected

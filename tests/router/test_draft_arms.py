"""Which replicas are used: what fits, what lied, what is trusted, near and rested."""

import asyncio
import logging
from dataclasses import replace

import pytest
from router_drafts import DRAFT_INFO, ask, committed, drafts_of, listed, ready
from router_fakes import (
    FakeDraft,
    Send,
    connect,
    drafted,
    ended,
    other,
    quick_config,
    running,
    serving,
    until,
    well_behaved,
)
from router_parts import INFO, TARGET, make_session

from specmesh.router.arms import DraftScope
from specmesh.router.config import PolicyConfig, PoolConfig
from specmesh.router.drafts import Drafts
from specmesh.router.policies import PLAIN, PolicySettings
from specmesh.runtime.types import BlockRefusal, FallbackReason, Rule, StepResult
from specmesh.v1 import draft_service_pb2 as pb
from specmesh.v1 import router_service_pb2 as router_pb


async def test_another_vocabulary_is_refused_by_its_first_id() -> None:
    """C14: the arm is INCOMPATIBLE and the reason names id 7."""
    pieces = [bytes([each]) * 4 for each in range(10)]
    target_info = other(INFO, tokenizer_digest="t", vocabulary_size=10, vocabulary_hashes=b"".join(pieces))
    pieces[7], pieces[8] = pieces[8], pieces[7]
    swapped = other(DRAFT_INFO, tokenizer_digest="s", vocabulary_size=10, vocabulary_hashes=b"".join(pieces))
    async with serving(FakeDraft(swapped)) as (server,):
        config = quick_config(pools=[PoolConfig(name="good", addresses=(server.address,))])
        drafts = Drafts(config, connect=connect)
        async with running(drafts):
            drafts.retarget(replace(TARGET, info=target_info))
            await until(lambda: bool(drafts.replicas()) and drafts.replicas()[0].info is not None)
            await until(lambda: listed(drafts).state == router_pb.ARM_STATE_INCOMPATIBLE)
            assert "token id 7 " in listed(drafts).reason
            assert not drafts.views(make_session())


async def test_a_replica_that_did_not_fit_and_is_replaced_is_used() -> None:
    fake = FakeDraft(other(DRAFT_INFO, contract_version=99))
    async with drafts_of(fake) as (drafts, _):
        await until(lambda: bool(drafts.replicas()) and listed(drafts).state == router_pb.ARM_STATE_INCOMPATIBLE)
        fake.info = DRAFT_INFO
        await ready(drafts)
        assert (await ask(drafts, make_session())).block.token_ids == (10, 11, 12, 13)


@pytest.mark.parametrize(("arm", "warned"), [("good@01234567", True), ("good@dddddddd", False), ("good", False)])
async def test_a_fixed_arm_of_another_model_than_the_pools_is_warned_of(
    arm: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its text is plain decoding's, and right; that nothing is drafted is for an operator to know."""
    policy = PolicyConfig(name="fixed", settings=PolicySettings(fixed_arm=arm))
    async with serving(FakeDraft(DRAFT_INFO)) as (server,):
        pools = [PoolConfig(name="good", addresses=(server.address,))]
        drafts = Drafts(quick_config(pools=pools, policy=policy), connect=connect)
        async with running(drafts):
            drafts.retarget(TARGET)
            await ready(drafts)
    said = [vars(record)["reason"] for record in caplog.records if record.levelno == logging.WARNING]
    assert said == (["policy.settings.fixed_arm: no such arm: good@01234567; there is good@dddddddd"] if warned else [])


async def test_a_lying_arm_is_quarantined_with_all_its_replicas() -> None:
    """C35: a token that was not sampled from its row; a restart does not clear it, another model does."""
    fakes = [FakeDraft(DRAFT_INFO), FakeDraft(DRAFT_INFO)]
    async with drafts_of(*fakes) as (drafts, servers):
        await ready(drafts, 2)
        session = make_session()
        block = await ask(drafts, session)
        result = committed(session, 30, block_refusal=BlockRefusal.RESAMPLE_MISMATCH)
        assert drafts.learn(session, block, result) is FallbackReason.INVALID_BLOCK
        assert not drafts.views(session)
        assert listed(drafts).state == router_pb.ARM_STATE_QUARANTINED
        await servers[0].stop()
        await servers[0].start()
        before = fakes[0].num_registrations
        await until(lambda: fakes[0].num_registrations >= before + 3)
        assert not drafts.views(session)
        assert fakes[0].num_registrations < before + 10, "it is looked at now and then"
        fakes[0].info = other(DRAFT_INFO, model_digest="e" * 64)
        await until(lambda: bool(drafts.views(session)))
        assert drafts.views(session)[0].arm.digest == "e" * 64


async def test_a_malformed_block_cools_its_replica_only() -> None:
    async with drafts_of(FakeDraft(DRAFT_INFO), FakeDraft(DRAFT_INFO)) as (drafts, _):
        await ready(drafts, 2)
        session = make_session()
        block = await ask(drafts, session)
        result = committed(session, 30, block_refusal=BlockRefusal.MALFORMED_ROW)
        assert drafts.learn(session, block, result) is FallbackReason.INVALID_BLOCK
        assert block.replica is not None
        assert not block.replica.health.ready
        assert drafts.views(session)


async def test_pieces_that_do_not_follow_each_other_end_the_block() -> None:
    async def jumps(entry: pb.DraftRequestEntry, send: Send) -> None:
        await send(drafted(entry, 0, 10))
        await send(drafted(entry, 2, 12))

    async with drafts_of(FakeDraft(DRAFT_INFO, jumps)) as (drafts, _):
        await ready(drafts)
        block = await ask(drafts, make_session())
        assert block.block.token_ids == (10,)
        assert block.replica is not None
        assert not block.replica.health.ready


async def test_rows_of_an_untrusted_draft_are_not_believed_under_block() -> None:
    """C37: it said that it sends none; the step is done without it."""

    async def with_rows(entry: pb.DraftRequestEntry, send: Send) -> None:
        await send(drafted(entry, 0, 10, rows=[b"12345678"]))
        await send(ended(entry))

    lookup = other(DRAFT_INFO, kind="of its own", one_hot=True)
    async with drafts_of(FakeDraft(lookup, with_rows), pool="shady", trust="untrusted") as (drafts, _):
        await ready(drafts)
        block = await ask(drafts, make_session(scope=DraftScope(frozenset({"shady"}), needs_trust=True)))
        assert (block.block.token_ids, block.fallback) == ((), FallbackReason.INVALID_BLOCK)
        await ready(drafts)
        coupled = make_session(rule=Rule.COUPLED, scope=DraftScope(frozenset({"shady"})))
        assert (await ask(drafts, coupled)).block.token_ids == (10,)


async def test_a_barred_pool_gets_nothing_of_a_context() -> None:
    """C42: neither asks nor closes nor opens; what it gets is the router's own probe."""
    fake = FakeDraft(DRAFT_INFO)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        probes = set(fake.closed)
        for scope in (
            DraftScope(frozenset()),
            DraftScope(frozenset({"other"})),
            DraftScope(frozenset({"good"}), frozenset({"x"})),
        ):
            session = make_session(scope=scope)
            assert not drafts.views(session)
            assert (await ask(drafts, session)).block.token_ids == ()
            drafts.close(session)
        assert not fake.entries
        assert not fake.opened
        assert fake.closed == probes


async def test_why_a_step_is_plain() -> None:
    async with drafts_of(FakeDraft(DRAFT_INFO)) as (drafts, _):
        await ready(drafts)
        session = make_session()
        assert (await drafts.block(session, PLAIN, drafts.views(session))).fallback is FallbackReason.POLICY
        assert (await drafts.block(session, PLAIN, ())).fallback is FallbackReason.NO_ARM
        off = make_session(scope=DraftScope(frozenset()))
        assert (await drafts.block(off, PLAIN, ())).fallback is FallbackReason.FORBIDDEN


@pytest.mark.parametrize(
    ("one_hot", "rule", "reason"),
    [
        (False, Rule.BLOCK, FallbackReason.FORBIDDEN),
        (True, Rule.BLOCK, FallbackReason.NO_ARM),
        (False, Rule.COUPLED, FallbackReason.NO_ARM),
    ],
)
async def test_an_arm_that_the_rule_keeps_out_is_forbidden_and_one_that_is_away_is_not(
    one_hot: bool, rule: Rule, reason: FallbackReason
) -> None:
    fake = FakeDraft(other(DRAFT_INFO, one_hot=one_hot))
    async with drafts_of(fake, pool="shady", trust="untrusted") as (drafts, _):
        await ready(drafts)
        scope = DraftScope(frozenset({"shady"}), needs_trust=rule is not Rule.COUPLED)
        session = make_session(rule=rule, scope=scope)
        for replica in drafts.replicas():
            replica.fail("to be away")
        assert (await ask(drafts, session)).fallback is reason


async def test_closing_a_session_reaches_every_replica_that_was_sent_some_of_it() -> None:
    fakes = [FakeDraft(DRAFT_INFO), FakeDraft(DRAFT_INFO)]
    async with drafts_of(*fakes) as (drafts, _):
        await ready(drafts, 2)
        session = make_session()
        block = await ask(drafts, session)
        assert block.replica is not None
        block.replica.fail("to make the session move")
        committed(session, 30)
        assert (await ask(drafts, session)).block.token_ids == (10, 11, 12, 13)
        drafts.close(session)
        await until(lambda: all(session.session_id in fake.closed for fake in fakes))
        assert all(replica.num_sessions == 0 for replica in drafts.replicas())


async def test_sessions_spread_over_replicas_and_stay_where_their_cache_is() -> None:
    fakes = [FakeDraft(DRAFT_INFO), FakeDraft(DRAFT_INFO)]
    async with drafts_of(*fakes) as (drafts, _):
        await ready(drafts, 2)
        for replica in drafts.replicas():
            replica.round_trip = 0.0  # this machine may be busy
        sessions = []
        for number in range(6):
            session = make_session()
            session.session_id = number
            sessions.append(session)
        for _ in range(3):
            for session in sessions:
                await ask(drafts, session)
                committed(session, 30)
        seen = [{entry.session_id for entry in fake.entries} for fake in fakes]
        assert len(seen[0]) == len(seen[1]) == 3
        assert not seen[0] & seen[1]


async def test_near_replicas_are_used_first() -> None:
    async def from_afar(entry: pb.DraftRequestEntry, send: Send) -> None:
        await asyncio.sleep(1.0)  # far beside what a busy machine makes of a near one
        await well_behaved(entry, send)

    near, far = FakeDraft(DRAFT_INFO), FakeDraft(DRAFT_INFO)
    far.probe_script = from_afar
    async with drafts_of(far, near) as (drafts, _):
        await ready(drafts, 2)
        for number in range(5):
            session = make_session()
            session.session_id = number
            await ask(drafts, session)
        assert (len(near.entries), len(far.entries)) == (5, 0)


async def test_the_deadline_follows_the_arms_recent_time() -> None:
    asked: list[int] = []

    async def noted(entry: pb.DraftRequestEntry, send: Send) -> None:
        asked.append(entry.block_deadline_ms)
        for offset in range(entry.block_length):
            await send(drafted(entry, offset, 10))
        await send(ended(entry))

    settings = {"block_deadline_ms": 5000.0, "min_deadline_ms": 500.0, "deadline_multiple": 2.0}
    async with drafts_of(FakeDraft(DRAFT_INFO, noted), settings=settings) as (drafts, _):
        await ready(drafts)
        session = make_session(max_output_tokens=50)
        for _ in range(3):
            await ask(drafts, session)
            committed(session, 30)
        assert asked[:2] == [5000, 5000], "nothing is known of an arm, or of a cold one"
        assert 500 <= asked[2] < 5000


@pytest.mark.parametrize("trust", ["full", "untrusted"])
async def test_an_arm_is_listed_with_its_state_and_figures(trust: str) -> None:
    async with drafts_of(FakeDraft(DRAFT_INFO), trust=trust) as (drafts, (server,)):
        await ready(drafts)
        session = make_session(rule=Rule.COUPLED, scope=DraftScope(frozenset({"good"})))
        for _ in range(2):
            block = await ask(drafts, session)
            result = StepResult(session.session_id, session.position, (10, 11, 30), 2, 4)
            session.commit(result)
            drafts.learn(session, block, result)
        arm = listed(drafts)
        assert (arm.name, arm.state, arm.ready_replica_count) == ("good@dddddddd", router_pb.ARM_STATE_READY, 1)
        assert arm.acceptance == pytest.approx(0.5)
        await server.stop()
        await until(lambda: listed(drafts).state != router_pb.ARM_STATE_READY)
        assert "connection lost" in listed(drafts).reason

"""Drafts that are late, dead, wrong or lie cost speed only; what they may see is checked on the wire."""

import asyncio
from itertools import pairwise

import grpc.aio
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
    until,
    well_behaved,
)
from router_parts import TARGET, make_session

from specmesh.router.config import PoolConfig
from specmesh.router.drafts import Drafts
from specmesh.runtime.types import FallbackReason
from specmesh.v1 import draft_service_pb2 as pb
from specmesh.v1 import entry_error_pb2 as error_pb
from specmesh.v1 import router_service_pb2 as router_pb


async def test_a_block_arrives_token_by_token() -> None:
    fake = FakeDraft(DRAFT_INFO)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        session = make_session()
        block = await ask(drafts, session)
        assert block.block.token_ids == (10, 11, 12, 13)
        assert block.block.position == 3
        assert block.arm is not None
        assert block.arm.name == "good@dddddddd"
        entry = fake.entries[0]
        assert entry.delta_token_ids == [5, 6, 7]
        assert entry.block_length == 4
        committed(session, 10, 30)
        await ask(drafts, session)
        assert fake.entries[1].delta_token_ids == [10, 30]
        assert fake.entries[1].position == 5


async def test_a_late_block_is_cut_and_not_dropped() -> None:
    """C36: what has arrived by the deadline is verified; an early end that comes after it changes nothing."""
    release = asyncio.Event()

    async def slow(entry: pb.DraftRequestEntry, send: Send) -> None:
        await send(drafted(entry, 0, 10))
        await send(drafted(entry, 1, 11))
        await release.wait()
        await send(drafted(entry, 2, 12))
        await send(ended(entry))

    async with drafts_of(FakeDraft(DRAFT_INFO, slow), settings={"block_deadline_ms": 150.0}) as (drafts, _):
        await ready(drafts)
        block = await ask(drafts, make_session())
        assert block.block.token_ids == (10, 11)
        assert block.fallback is None
        release.set()


async def test_answers_to_an_earlier_position_are_never_part_of_a_block() -> None:
    held: list[pb.DraftRequestEntry] = []

    async def late_then_mixed(entry: pb.DraftRequestEntry, send: Send) -> None:
        held.append(entry)
        if len(held) == 1:
            return
        await send(drafted(held[0], 0, 66))
        await send(ended(held[0]))
        await send(drafted(entry, 0, 20))
        await send(ended(entry))

    settings = {"block_deadline_ms": 100.0, "min_deadline_ms": 100.0}
    async with drafts_of(FakeDraft(DRAFT_INFO, late_then_mixed), settings=settings) as (drafts, _):
        await ready(drafts)
        session = make_session()
        assert (await ask(drafts, session)).fallback is FallbackReason.TIMEOUT
        committed(session, 30)
        await ready(drafts)
        assert (await ask(drafts, session)).block.token_ids == (20,)


def going_on(handle: int, token_id: int = 0) -> pb.DraftResponseEntry:
    """What follows the first entry of a block: a token with its row, or the end."""
    if token_id:
        return pb.DraftResponseEntry(handle=handle, token_id=token_id, row=b"12345678")
    return pb.DraftResponseEntry(handle=handle, end=pb.DraftEnd())


def begun(entry: pb.DraftRequestEntry, handle: int, token_id: int) -> pb.DraftResponseEntry:
    first = going_on(handle, token_id)
    first.session_id, first.position = entry.session_id, entry.position
    return first


async def test_what_follows_the_first_token_names_its_block_by_the_handle_alone() -> None:
    async def streams(entry: pb.DraftRequestEntry, send: Send) -> None:
        await send(begun(entry, 7, 10))
        await send(going_on(8, 66))  # of a block that nobody began
        await send(going_on(7, 11))
        await send(going_on(7))

    async with drafts_of(FakeDraft(DRAFT_INFO, streams)) as (drafts, _):
        await ready(drafts)
        block = (await ask(drafts, make_session())).block
        assert (block.token_ids, block.rows) == ((10, 11), (b"12345678",) * 2)


async def test_a_handle_brings_nothing_of_a_block_that_was_cut() -> None:
    """Late tokens are never part of the next block, whose handle may be the same."""
    first: list[pb.DraftRequestEntry] = []

    async def late(entry: pb.DraftRequestEntry, send: Send) -> None:
        if not first:
            first.append(entry)
            await send(begun(entry, 1, 10))
            return
        await send(going_on(1, 66))
        await send(going_on(1))
        await send(begun(first[0], 2, 67))  # cut before it began
        await send(going_on(2, 68))
        await send(begun(entry, 1, 20))
        await send(going_on(2))
        await send(going_on(1, 21))
        await send(going_on(1))

    settings = {"block_deadline_ms": 150.0, "min_deadline_ms": 150.0}
    async with drafts_of(FakeDraft(DRAFT_INFO, late), settings=settings) as (drafts, _):
        await ready(drafts)
        session = make_session()
        assert (await ask(drafts, session)).block.token_ids == (10,)
        committed(session, 30)
        assert (await ask(drafts, session)).block.token_ids == (20, 21)


async def test_a_replica_that_says_nothing_cools_down_and_is_probed_back() -> None:
    """C23: a draft that hangs costs one deadline; it is not asked again until a probe of its own was answered."""

    async def silent(entry: pb.DraftRequestEntry, send: Send) -> None:
        del entry, send

    fake = FakeDraft(DRAFT_INFO)
    async with drafts_of(fake, settings={"block_deadline_ms": 100.0}) as (drafts, _):
        await ready(drafts)
        fake.script = fake.probe_script = silent
        session = make_session()
        block = await ask(drafts, session)
        assert (block.block.token_ids, block.fallback) == ((), FallbackReason.TIMEOUT)
        assert listed(drafts).state == router_pb.ARM_STATE_PROBING
        await until(lambda: listed(drafts).state == router_pb.ARM_STATE_COOLING)
        for _ in range(20):
            assert (await ask(drafts, session)).fallback is FallbackReason.NO_ARM
        assert len(fake.entries) == 1
        fake.script = fake.probe_script = well_behaved
        await ready(drafts)
        assert (await ask(drafts, session)).block.token_ids == (10, 11, 12, 13)


async def test_a_block_that_the_draft_itself_ends_at_its_deadline_is_late() -> None:
    async def gives_up(entry: pb.DraftRequestEntry, send: Send) -> None:
        await send(ended(entry, reason=pb.DRAFT_END_REASON_DEADLINE))

    async with drafts_of(FakeDraft(DRAFT_INFO, gives_up)) as (drafts, _):
        for state in (router_pb.ARM_STATE_PROBING, router_pb.ARM_STATE_COOLING):
            await ready(drafts)
            await ask(drafts, make_session())
            assert listed(drafts).state == state


async def test_a_replica_that_cannot_be_reached_is_tried_ever_more_rarely() -> None:
    attempts: list[float] = []

    def noted(address: str) -> grpc.aio.Channel:
        attempts.append(asyncio.get_running_loop().time())
        return connect(address)

    settings = {"cooldown_seconds": 0.05, "max_cooldown_seconds": 0.4}
    pools = [PoolConfig(name="good", addresses=("127.0.0.1:1",))]
    drafts = Drafts(quick_config(pools=pools, drafts=settings), connect=noted)
    async with running(drafts):
        drafts.retarget(TARGET)
        await until(lambda: len(attempts) == 6)
        assert "connection lost" in listed(drafts).reason
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2, 0.4, 0.4), strict=True))


async def test_a_replica_that_dies_gives_what_it_had_and_is_found_again() -> None:
    """C23: the draft dies in the middle of a block."""
    arrived = asyncio.Event()

    async def dies(entry: pb.DraftRequestEntry, send: Send) -> None:
        await send(drafted(entry, 0, 10))
        arrived.set()
        await asyncio.Event().wait()

    fake = FakeDraft(DRAFT_INFO, dies)
    async with drafts_of(fake, settings={"block_deadline_ms": 60_000.0}) as (drafts, (server,)):
        await ready(drafts)
        session = make_session()
        asking = asyncio.create_task(ask(drafts, session))
        await arrived.wait()
        await server.stop()
        assert (await asyncio.wait_for(asking, 10)).block.token_ids in ((), (10,)), "long before the deadline"
        await until(lambda: not drafts.views(session))
        fake.script = well_behaved
        await server.start()
        await ready(drafts)
        committed(session, 30)
        assert (await ask(drafts, session)).block.token_ids == (10, 11, 12, 13)
        assert fake.entries[-1].delta_token_ids == [5, 6, 7, 30], "a new connection is taken to hold nothing"


async def test_a_context_that_is_not_held_is_brought_by_open() -> None:
    answered = []

    async def forgetful(entry: pb.DraftRequestEntry, send: Send) -> None:
        if not answered:
            answered.append(entry)
            needed = pb.ContextNeeded(have_length=1)
            reply = pb.DraftResponseEntry(session_id=entry.session_id, position=entry.position, context_needed=needed)
            await send(reply)
        else:
            await send(drafted(entry, 0, 21))
            await send(ended(entry))

    fake = FakeDraft(DRAFT_INFO, forgetful)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        session = make_session()
        assert (await ask(drafts, session)).block.token_ids == (21,)
        assert fake.opened == [(session.session_id, 1, (6, 7))]
        assert fake.entries[1].position == 3
        assert fake.entries[1].delta_token_ids == []


async def test_a_replica_that_keeps_asking_for_the_context_is_given_up() -> None:
    async def insatiable(entry: pb.DraftRequestEntry, send: Send) -> None:
        error = error_pb.EntryError(reason=error_pb.ENTRY_ERROR_REASON_CONTEXT_MISMATCH)
        await send(pb.DraftResponseEntry(session_id=entry.session_id, position=entry.position, error=error))

    fake = FakeDraft(DRAFT_INFO, insatiable)
    async with drafts_of(fake) as (drafts, _):
        await ready(drafts)
        assert (await ask(drafts, make_session())).fallback is FallbackReason.TIMEOUT
        assert len(fake.opened) == 1


async def test_a_full_draft_context_ends_that_arm_for_that_session_only() -> None:
    """C26: a draft context shorter than the target's."""

    async def full(entry: pb.DraftRequestEntry, send: Send) -> None:
        error = error_pb.EntryError(reason=error_pb.ENTRY_ERROR_REASON_CONTEXT_TOO_LONG)
        await send(pb.DraftResponseEntry(session_id=entry.session_id, position=entry.position, error=error))

    async with drafts_of(FakeDraft(DRAFT_INFO, full)) as (drafts, _):
        await ready(drafts)
        session = make_session()
        await ask(drafts, session)
        assert not drafts.views(session)
        stranger = make_session()
        stranger.session_id += 1
        assert drafts.views(stranger)
        assert listed(drafts).state == router_pb.ARM_STATE_READY
    async with drafts_of(FakeDraft(other(DRAFT_INFO, max_context_tokens=4))) as (drafts, _):
        await ready(drafts)
        session = make_session()
        assert drafts.views(session)
        committed(session, 30)
        assert not drafts.views(session)

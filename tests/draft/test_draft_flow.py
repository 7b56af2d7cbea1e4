"""The conversation between a router and a draft: contexts, steps, deadlines, ends."""

import asyncio
from dataclasses import replace

import grpc
import grpc.aio
import numpy as np
import pytest
from draft_fakes import CONTEXT, LAW, SleepyDrafter, faulty
from draft_peers import KEY, WHOLE_ROWS, ask_for, assert_honest, draft_peer, law_drafter, table_drafter

from specmesh.draft.admission import EngineLimits
from specmesh.draft.block import Ended, Event
from specmesh.draft.engine import DraftEngine, Stopping
from specmesh.draft.ngram_file import NgramTable, law_to_levels
from specmesh.draft.runner import MAX_COMMANDS
from specmesh.runtime.types import DraftEndReason, Rule, Sampling
from specmesh.runtime.wire import draft_ask_to_entry
from specmesh.v1 import draft_service_pb2 as pb


async def test_a_whole_block_and_its_end_are_one_frame_when_the_draft_cannot_stop_early() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        answer = await peer.talk.ask(ask_for(CONTEXT, 4, 8))
        assert (len(answer.token_ids), answer.num_frames) == (8, 1)
        assert len(peer.talk.frames[0].entries) == 2


@pytest.mark.parametrize("stopping", [Stopping(min_probability=1e-9), Stopping(at_eos=True)])
async def test_a_block_that_may_stop_early_is_told_token_by_token(stopping: Stopping) -> None:
    """C36: what has been sampled is on its way before it is known where the block ends."""
    table = NgramTable(law_to_levels(LAW), 5, eos_token_ids=frozenset({99}))
    async with draft_peer(table_drafter(table), stopping=stopping) as peer:
        answer = await peer.talk.ask(ask_for(CONTEXT, 4, 6))
        assert (len(answer.token_ids), answer.num_parts) == (6, 6)


@pytest.mark.parametrize("sampling", [Sampling(logit_bias=((1, 0.5),)), Sampling(presence_penalty=0.5)])
async def test_rows_that_take_milliseconds_are_told_token_by_token(sampling: Sampling) -> None:
    """C36: a row of penalties or bias takes so long that a block held back would be late by its values."""
    async with draft_peer(law_drafter(LAW)) as peer:
        answer = await peer.talk.ask(ask_for(CONTEXT, 4, 6, sampling=sampling, rule=Rule.BLOCK))
        assert (len(answer.token_ids), answer.num_parts) == (6, 6)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling()])
async def test_a_block_without_rows_may_be_late_whole(sampling: Sampling) -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        answer = await peer.talk.ask(ask_for(CONTEXT, 4, 6, sampling=sampling, rule=Rule.COUPLED))
        assert (len(answer.token_ids), answer.num_frames) == (6, 1)


async def test_a_token_arrives_before_the_next_is_sampled() -> None:
    drafter = SleepyDrafter()
    async with draft_peer(drafter) as peer:
        await peer.talk.send([draft_ask_to_entry(ask_for(CONTEXT, 4, 6))])
        answer = peer.talk.expect(1, 4)
        for length in range(1, 7):
            drafter.go.release(1)
            while len(answer.token_ids) < length:
                await peer.talk.read()
            assert drafter.num_ticks == length
        while not answer.done:
            await peer.talk.read()


async def test_an_improbable_token_ends_the_block_and_is_kept() -> None:
    async with draft_peer(law_drafter(LAW), stopping=Stopping(min_probability=0.3)) as peer:
        reasons = set()
        for step in range(60):
            ask = ask_for(CONTEXT, 4, 4, draft_key=KEY + step)
            answer = await peer.talk.ask(ask)
            assert_honest(answer, ask, 5)
            reasons.add(answer.reason)
            improbable = [logprob < np.log(0.3) for logprob in answer.logprobs]
            assert not any(improbable[:-1])
            assert improbable[-1] == (answer.reason == "CONFIDENCE") or len(answer.token_ids) == 4
        assert reasons == {"CONFIDENCE", "LENGTH"}


async def test_a_token_that_ends_a_text_ends_the_block_and_is_kept() -> None:
    law = np.zeros((5, 5, 5))
    law[:, 0, 1] = law[:, 1, 2] = law[:, 2, 3] = law[:, 3, 0] = law[:, 4, 0] = 1
    table = NgramTable(law_to_levels(law), 5, eos_token_ids=frozenset({2}))
    async with draft_peer(table_drafter(table), stopping=Stopping(at_eos=True)) as peer:
        answer = await peer.talk.ask(ask_for([4, 0], 2, 4))
        assert (answer.token_ids, answer.reason) == ([1, 2], "EOS")
    async with draft_peer(table_drafter(table)) as peer:
        answer = await peer.talk.ask(ask_for([4, 0], 2, 4))
        assert (answer.token_ids, answer.reason) == ([1, 2, 3, 0], "LENGTH")


async def test_a_context_that_is_not_held_is_asked_for_and_brought() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        ask = ask_for(CONTEXT, 1)
        assert (await peer.talk.ask(ask)).needed == 0
        assert await peer.talk.open(1, CONTEXT) == 4
        answer = await peer.talk.ask(replace(ask, delta_token_ids=()))
        assert (answer.reason, answer.source) == ("LENGTH", "COLD")
        context = [*CONTEXT, 2, 0]
        assert (await peer.talk.ask(ask_for(context, 2))).source == "WARM"
        behind = await peer.talk.ask(ask_for([*context, 1, 1, 1], 1))
        assert behind.needed == 6
        assert await peer.talk.open(1, [*context, 1, 1, 1], 6) == 9
        assert (await peer.talk.ask(ask_for([*context, 1, 1, 1], 0))).reason == "LENGTH"


async def test_a_context_that_differs_is_asked_for_from_its_beginning() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        await peer.talk.ask(ask_for(CONTEXT, 4))
        other = [3, 1, 0, 1]
        assert (await peer.talk.ask(ask_for(other, 1))).needed == 0
        answer = await peer.talk.ask_or_open(ask_for(other, 1), other)
        assert answer.reason == "LENGTH"
        async with draft_peer(law_drafter(LAW)) as fresh:
            assert (await fresh.talk.ask(ask_for(other, 4))).token_ids == answer.token_ids


async def test_an_entry_may_be_repeated_and_a_delta_may_overlap() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        first = await peer.talk.ask(ask_for(CONTEXT, 4))
        assert (await peer.talk.ask(ask_for(CONTEXT, 4))).rows == first.rows
        assert (await peer.talk.ask(ask_for(CONTEXT, 0))).token_ids == first.token_ids
        longer = [*CONTEXT, *first.token_ids]
        assert (await peer.talk.ask(ask_for(longer, 6))).reason == "LENGTH"


async def test_a_long_context_comes_in_chunks() -> None:
    context = np.random.default_rng(1).integers(0, 5, size=40_000).tolist()
    drafter = law_drafter(LAW)
    drafter.info = replace(drafter.info, max_context_tokens=50_000)
    async with draft_peer(drafter) as peer:
        assert await peer.talk.open(1, context) == 40_000
        assert (await peer.talk.ask(ask_for(context, 0))).reason == "LENGTH"


@pytest.mark.parametrize("rule", list(Rule))
async def test_any_replica_can_serve_any_step(rule: Rule) -> None:
    """Each step to another replica, one of them killed on the way: the same tokens as from one that never moves."""
    steps = np.random.default_rng(7).integers(0, 5, size=(12, 3)).tolist()

    async def run(*peers: object) -> list[tuple[list[int], list[bytes]]]:
        context, answers = list(CONTEXT), []
        for step, delta in enumerate(steps):
            context += delta
            peer = peers[step % len(peers)]
            if step == 7 and len(peers) > 1:
                await peers[0].server.stop(0)  # type: ignore[attr-defined]
                peers = peers[1:]
                peer = peers[0]
            ask = ask_for(context, len(delta), 4, rule=rule)
            answer = await peer.talk.ask_or_open(ask, context)  # type: ignore[attr-defined]
            answers.append((answer.token_ids, answer.rows))
        return answers

    async with draft_peer(law_drafter(LAW)) as alone:
        expected = await run(alone)
    async with (
        draft_peer(law_drafter(LAW)) as one,
        draft_peer(law_drafter(LAW)) as two,
        draft_peer(law_drafter(LAW)) as three,
    ):
        assert await run(one, two, three) == expected


async def test_block_length_0_only_catches_up() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        answer = await peer.talk.ask(ask_for(CONTEXT, 4, 0))
        assert (answer.token_ids, answer.reason) == ([], "LENGTH")
        assert (await peer.talk.ask(ask_for([*CONTEXT, 2], 1, 1))).source == "WARM"


async def test_sessions_in_one_frame_are_one_batch() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        answers = await peer.talk.ask_all([ask_for(CONTEXT, 4, session_id=s) for s in range(20)])
        assert [answer.end.batch_size for answer in answers if answer.end] == [20] * 20
        assert len(peer.talk.frames) == 1


async def test_the_deadline_ends_a_block_with_what_it_has() -> None:
    """C23, draft side: a slow draft ends its blocks in time."""
    async with draft_peer(faulty(token_seconds=0.05)) as peer:
        ask = ask_for(CONTEXT, 4, 16, block_deadline_ms=220)
        answer = await peer.talk.ask(ask)
        assert answer.reason == "DEADLINE"
        assert 1 <= len(answer.token_ids) <= 5
        assert_honest(answer, ask, 5)
        assert answer.end is not None
        assert answer.end.compute_ns >= 0.05e9 * len(answer.token_ids)


async def test_time_that_has_passed_is_an_error_of_the_entry() -> None:
    drafter = SleepyDrafter()
    async with draft_peer(drafter, limits=EngineLimits(max_batch=1)) as peer:
        await peer.talk.send([draft_ask_to_entry(ask_for(CONTEXT, 4, 2, session_id=1))])
        first = peer.talk.expect(1, 4)
        late = asyncio.ensure_future(peer.talk.ask(ask_for(CONTEXT, 4, 2, session_id=2), remaining_ms=1))
        await asyncio.sleep(0.05)  # the remaining time passes; nothing is waited for
        drafter.go.release(2)
        assert (await late).error == "DEADLINE_EXCEEDED"
        assert first.reason == "LENGTH"


class Events:
    """A router's stream that keeps what it is told."""

    def __init__(self) -> None:
        self.ends: list[Ended] = []

    def receive(self, event: Event) -> None:
        assert isinstance(event.what, Ended)
        self.ends.append(event.what)


def test_a_deadline_counts_from_the_entrys_arrival_and_not_from_the_end_of_a_tick() -> None:
    engine = DraftEngine(SleepyDrafter(), WHOLE_ROWS, Stopping(), clock=lambda: 10.0)
    events = Events()
    engine.submit(ask_for(CONTEXT, 4, 3, block_deadline_ms=40), events, arrived=9.95)
    engine.tick()
    for event in engine.take_events():
        event.receiver.receive(event)
    assert [(end.num_drafted, end.reason) for end in events.ends] == [(0, DraftEndReason.DEADLINE)]


async def test_a_new_entry_ends_the_block_before() -> None:
    """A router that gave up waiting goes on with the next step; each entry has exactly one end."""
    drafter = SleepyDrafter()
    async with draft_peer(drafter) as peer:
        old_ask = ask_for(CONTEXT, 4, 16)
        await peer.talk.send([draft_ask_to_entry(old_ask)])
        old = peer.talk.expect(1, 4)
        drafter.go.release(2)
        while len(old.token_ids) < 2:
            await peer.talk.read()
        await peer.talk.send([draft_ask_to_entry(ask_for([*CONTEXT, 2], 1, 1))])
        new = peer.talk.expect(1, 5)
        while not new.done:
            drafter.go.release()
            await peer.talk.read()
        assert old.reason == "DEADLINE"
        assert_honest(old, old_ask, 5)
        assert new.reason == "LENGTH"


async def test_close_forgets_and_its_block_stays_unanswered() -> None:
    drafter = SleepyDrafter()
    async with draft_peer(drafter) as peer:
        closing = pb.DraftRequestEntry(session_id=1, close=True)
        await peer.talk.send([draft_ask_to_entry(ask_for(CONTEXT, 4, 16)), closing])
        drafter.go.release(40)
        fresh = await peer.talk.ask(ask_for([*CONTEXT, 2], 1, 1))
        assert fresh.needed == 0
        assert peer.engine.num_blocks == 0
        assert len(peer.engine.store) == 0


async def test_a_lost_stream_ends_its_blocks_and_the_sessions_go_on_elsewhere() -> None:
    drafter = SleepyDrafter()
    async with draft_peer(drafter) as peer:
        lost = peer.new_stream()
        await lost.send([draft_ask_to_entry(ask_for(CONTEXT, 4, 16))])
        drafter.go.release(1)
        expected = lost.expect(1, 4)
        while not expected.token_ids:
            await lost.read()
        lost.call.cancel()
        drafter.go.release(40)
        answer = await peer.talk.ask(ask_for([*CONTEXT, 0], 1, 2))
        assert (answer.reason, answer.source) == ("LENGTH", "WARM")
        await asyncio.wait_for(peer.runner.idle.wait(), 5)


async def test_who_sends_more_than_the_engine_takes_has_to_wait_for_it() -> None:
    drafter = SleepyDrafter()
    async with draft_peer(drafter) as peer:
        done: list[int] = []
        await peer.runner.keep_up()
        await peer.talk.send([draft_ask_to_entry(ask_for(CONTEXT, 4, 1))])
        assert await asyncio.to_thread(drafter.entered.acquire, timeout=10)
        for index in range(MAX_COMMANDS):
            peer.runner.post(lambda _, index=index: done.append(index))
        waiting = asyncio.ensure_future(peer.runner.keep_up())
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        drafter.go.release(1)
        await asyncio.wait_for(waiting, 10)
        assert done == list(range(MAX_COMMANDS))


async def test_half_closing_gets_all_answers_and_then_the_end_of_the_stream() -> None:
    async with draft_peer(faulty(token_seconds=0.01)) as peer:
        await peer.talk.send([draft_ask_to_entry(ask_for(CONTEXT, 4, 5))])
        await peer.talk.call.done_writing()
        answer = peer.talk.expect(1, 4)
        while not answer.done:
            await peer.talk.read()
        assert len(answer.token_ids) == 5
        assert await peer.talk.call.read() is grpc.aio.EOF
        assert await peer.talk.call.code() is grpc.StatusCode.OK


async def test_penalties_count_the_prompt_the_output_and_the_draft_so_far() -> None:
    law = np.broadcast_to(np.array([0.5, 0.45, 0.05]), (3, 3, 3)).copy()
    sampling = Sampling(temperature=0, frequency_penalty=0.15)
    async with draft_peer(law_drafter(law), limits=WHOLE_ROWS) as peer:
        answer = await peer.talk.ask(ask_for([2, 2], 2, 4, sampling=sampling))
        assert answer.token_ids == [0, 1, 0, 1]
        answer = await peer.talk.ask(ask_for([2, 2, 0, 0], 2, 4, sampling=sampling))
        assert answer.token_ids == [1, 1, 0, 1]

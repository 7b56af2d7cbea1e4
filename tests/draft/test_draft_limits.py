"""What a draft refuses, forgets, and survives; what it says of itself; how it drains."""

import asyncio

import grpc
import grpc.aio
import pytest
from draft_fakes import CONTEXT, LAW, SleepyDrafter, faulty
from draft_peers import KEY, ask_for, draft_peer, law_drafter, table_drafter

from specmesh.draft.admission import EngineLimits
from specmesh.draft.lookup import LookupDrafter, LookupSettings
from specmesh.draft.ngram_file import NgramTable, law_to_levels
from specmesh.runtime.rows import check_block
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.types import BlockRefusal
from specmesh.runtime.wire import draft_ask_to_entry
from specmesh.v1 import draft_service_pb2 as pb


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_conditional": 2}, "conditional_count"),
        ({"block_length": 17}, "block_length"),
        ({"delta_token_ids": (3, 1, 4, 1, 1)}, "delta_token_ids"),
        ({"delta_token_ids": (5,)}, "delta_token_ids"),
        ({"position": 0, "delta_token_ids": ()}, "position"),
    ],
)
async def test_a_bad_value_is_the_entrys_error_and_names_the_field(change: dict[str, object], field: str) -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        bad, good = await peer.talk.ask_all([ask_for(CONTEXT, 4, **change), ask_for(CONTEXT, 4, session_id=2)])
        assert bad.error == "INVALID_VALUE"
        assert bad.message.startswith(field)
        assert good.reason == "LENGTH"
        assert (await peer.talk.ask(ask_for(CONTEXT, 4))).reason == "LENGTH"


async def test_unservable_sampling_and_an_unset_rule_are_the_entrys_error() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        cold = draft_ask_to_entry(ask_for(CONTEXT, 4))
        cold.sampling.temperature = float("nan")
        no_rule = draft_ask_to_entry(ask_for(CONTEXT, 4, session_id=2))
        no_rule.ClearField("rule")
        await peer.talk.send([cold, no_rule, draft_ask_to_entry(ask_for(CONTEXT, 4, session_id=3))])
        answers = [peer.talk.expect(session, 4) for session in (1, 2, 3)]
        while not all(answer.done for answer in answers):
            await peer.talk.read()
        assert [answer.error for answer in answers] == ["INVALID_VALUE", "INVALID_VALUE", None]
        assert answers[0].message.startswith("sampling.temperature")
        assert answers[1].message.startswith("rule")


async def test_a_field_that_this_build_does_not_know_is_the_entrys_error_and_named_by_number() -> None:
    """C40, draft side: an option is never skipped in silence."""
    async with draft_peer(law_drafter(LAW)) as peer:
        entry = draft_ask_to_entry(ask_for(CONTEXT, 4))
        entry.sampling.MergeFromString(b"\xc2\x3e\x01x")  # field 1000, one byte
        await peer.talk.send([entry])
        answer = peer.talk.expect(1, 4)
        await peer.talk.read()
        assert answer.error == "INVALID_VALUE"
        assert "unknown field number 1000" in answer.message
        assert (await peer.talk.ask(ask_for(CONTEXT, 4))).reason == "LENGTH"


async def test_a_frame_with_an_unknown_field_ends_the_stream_and_says_why() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        await peer.talk.call.write(pb.DraftRequest.FromString(b"\xc2\x3e\x01x"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await peer.talk.call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert from_rpc_error(refused.value).reason == "UNKNOWN_FIELD"
        assert (await peer.new_stream().ask(ask_for(CONTEXT, 4))).reason == "LENGTH"


async def test_too_many_blocks_in_flight_are_refused_as_overload() -> None:
    drafter = SleepyDrafter()
    async with draft_peer(drafter, limits=EngineLimits(max_blocks=2)) as peer:
        drafter.go.release(50)
        answers = await peer.talk.ask_all([ask_for(CONTEXT, 4, session_id=s) for s in range(3)])
        assert [answer.error for answer in answers] == [None, None, "OVERLOADED"]


async def test_the_least_recently_used_session_is_forgotten() -> None:
    async with draft_peer(law_drafter(LAW), limits=EngineLimits(max_sessions=2)) as peer:
        for session in (1, 2, 1, 3):
            await peer.talk.ask(ask_for(CONTEXT, 4, session_id=session))
        assert len(peer.engine.store) == 2
        assert (await peer.talk.ask(ask_for([*CONTEXT, 0], 1, session_id=1))).source == "WARM"
        assert (await peer.talk.ask(ask_for([*CONTEXT, 0], 1, session_id=2))).needed == 0


async def test_contexts_are_bounded_by_bytes() -> None:
    async with draft_peer(law_drafter(LAW), limits=EngineLimits(max_context_bytes=4 * 100)) as peer:
        for session in range(30):
            await peer.talk.ask(ask_for([1, 2] * 5, 10, session_id=session))
            assert peer.engine.store.held_bytes <= 4 * 100 + 4 * 4
        assert len(peer.engine.store) == 10


def opening(length: int, token_ids: list[int]) -> list[pb.DraftServiceOpenRequest]:
    """One message, right or wrong."""
    header = pb.DraftOpenHeader(session_id=1, length=length)
    return [pb.DraftServiceOpenRequest(header=header, token_ids=token_ids)]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "INVALID_VALUE"),
        ([pb.DraftServiceOpenRequest(token_ids=[1])], "INVALID_VALUE"),
        (opening(2, [1]), "INVALID_VALUE"),
        (opening(1, [1, 1]), "INVALID_VALUE"),
        (opening(1, [5]), "INVALID_VALUE"),
        (opening(20_000, [1] * 20_000), "INVALID_VALUE"),
        (opening(5_000, [1] * 5_000), "CONTEXT_TOO_LONG"),
        (opening(1 << 31, [1]), "CONTEXT_TOO_LONG"),  # before what it announces is taken in
        (opening(2, [1]) + opening(2, [1]), "INVALID_VALUE"),
        ([*opening(2, [1]), pb.DraftServiceOpenRequest(), pb.DraftServiceOpenRequest(token_ids=[1])], "INVALID_VALUE"),
    ],
)
async def test_a_bad_open_is_refused_and_the_next_works(
    messages: list[pb.DraftServiceOpenRequest], reason: str
) -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await peer.stub.Open(iter(messages))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert from_rpc_error(refused.value).reason == reason
        assert await peer.talk.open(1, CONTEXT) == 4


async def test_an_open_that_starts_beyond_what_is_held_says_what_is() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        assert await peer.talk.open(1, CONTEXT, 2) == 0
        assert await peer.talk.open(1, CONTEXT) == 4
        assert await peer.talk.open(1, [*CONTEXT, 1, 1], 5) == 4


async def test_a_failing_drafter_costs_its_blocks_and_not_the_service() -> None:
    async with draft_peer(faulty(raise_after_tokens=2)) as peer:
        ask = ask_for(CONTEXT, 4, 5)
        answer = await peer.talk.ask(ask)
        assert (answer.error, len(answer.token_ids)) == ("INTERNAL", 2)
        assert answer.message == "the draft failed; the server's log has the rest"
        assert (await peer.talk.ask(ask_for(CONTEXT, 0, 5))).error == "INTERNAL"
        assert peer.engine.num_blocks == 0


@pytest.mark.parametrize(
    ("lie", "refusal"),
    [
        ("none", None),
        ("always_zero", BlockRefusal.RESAMPLE_MISMATCH),
        ("other_token", BlockRefusal.RESAMPLE_MISMATCH),
        ("outside_row", BlockRefusal.TOKEN_OUT_OF_ROW),
        ("broken_row", BlockRefusal.MALFORMED_ROW),
        ("out_of_vocabulary", BlockRefusal.TOKEN_OUT_OF_VOCABULARY),
    ],
)
async def test_every_lie_of_the_faulty_draft_is_one_that_a_verifier_sees(
    lie: str, refusal: BlockRefusal | None
) -> None:
    """C5, C35: and an honest draft is never refused."""
    async with draft_peer(faulty(lie=lie)) as peer:
        seen = set()
        for step in range(30):
            ask = ask_for(CONTEXT, 4, 3, draft_key=KEY + step)
            answer = await peer.talk.ask(ask)
            if lie == "always_zero":
                assert answer.token_ids == [0, 0, 0]
            found, _ = check_block(
                answer.token_ids, answer.rows, vocabulary_size=5, draft_key=ask.draft_key, block_start=4
            )
            seen.add(found)
        assert seen == {refusal} if lie != "other_token" else refusal in seen


async def test_nan_at_an_offset_ends_every_block_there() -> None:
    """C6, C36: before sampling, keeping what was sampled."""
    async with draft_peer(law_drafter(LAW)) as honest, draft_peer(faulty(nan_at_offset=2)) as peer:
        ask = ask_for(CONTEXT, 4, 5)
        whole, cut = await honest.talk.ask(ask), await peer.talk.ask(ask)
        assert (cut.reason, cut.token_ids, cut.rows) == ("NON_FINITE", whole.token_ids[:2], whole.rows[:2])


async def test_a_drain_says_so_finishes_blocks_and_ends_streams() -> None:
    """C32, draft side."""
    drafter = SleepyDrafter()
    async with draft_peer(drafter) as peer:
        await peer.talk.send([draft_ask_to_entry(ask_for(CONTEXT, 4, 6))])
        answer = peer.talk.expect(1, 4)
        drafter.go.release(1)
        while not answer.token_ids:
            await peer.talk.read()
        drain = asyncio.ensure_future(peer.servicer.drain())
        drafter.go.release(1)
        frame = await peer.talk.read()
        while not frame.draining:
            frame = await peer.talk.read()
        new = asyncio.ensure_future(peer.talk.send([draft_ask_to_entry(ask_for(CONTEXT, 4, session_id=2))]))
        refused = peer.talk.expect(2, 4)
        await new
        drafter.go.release(1)
        while not refused.done:
            drafter.go.release(1)
            await peer.talk.read()
        assert refused.error == "DRAINING"
        drafter.go.release(40)
        while not answer.done:
            await peer.talk.read()
        assert len(answer.token_ids) == 6
        await asyncio.wait_for(drain, 5)
        assert await peer.talk.call.read() is grpc.aio.EOF


async def test_info_says_what_the_draft_is() -> None:
    table = NgramTable(law_to_levels(LAW), 5, "d" * 64, "mine", "t" * 64, b"\1\2\3\4" * 5)
    async with draft_peer(table_drafter(table), limits=EngineLimits(max_block_length=7)) as peer:
        info = (await peer.stub.GetInfo(pb.DraftServiceGetInfoRequest())).info
        assert (info.kind, info.model_name, info.vocabulary_size, info.max_block_length) == ("table", "mine", 5, 7)
        assert not info.one_hot
        assert (info.model_digest, info.tokenizer_digest) == ("d" * 64, "t" * 64)
        assert (info.contract_version, info.max_context_tokens, info.vocabulary_hashes) == (1, 4096, b"")
        told = (await peer.stub.GetInfo(pb.DraftServiceGetInfoRequest(want_vocabulary=True))).info
        assert told.vocabulary_hashes == b"\1\2\3\4" * 5
    async with draft_peer(LookupDrafter(LookupSettings())) as peer:
        info = (await peer.stub.GetInfo(pb.DraftServiceGetInfoRequest())).info
        assert (info.kind, info.vocabulary_size, info.tokenizer_digest, info.one_hot) == ("lookup", 0, "", True)

"""Every internal message says the same thing after the wire as before it."""

from specmesh.runtime import wire
from specmesh.runtime.contract import DRAFT_SERVICE, ROUTER_SERVICE, VERIFIER_SERVICE
from specmesh.runtime.types import (
    Block,
    BlockRefusal,
    ContextSource,
    DraftAsk,
    DraftEndReason,
    EntryErrorReason,
    FinishReason,
    Rule,
    Sampling,
    ServiceInfo,
    SessionSpec,
    StepResult,
    TokenLogprob,
    VerifyTiming,
)
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import router_service_pb2 as router_pb
from specmesh.v1 import verifier_service_pb2 as verifier_pb

# Values that float32 holds exactly: the wire carries float32.
SAMPLING = Sampling(0.5, 0.75, 7, 0.25, 1.5, -0.5, 0.125, ((3, -2.0), (9, 1.0)))


def test_absent_and_zero_differ() -> None:
    """C40: temperature absent is 1, temperature 0 is greedy."""
    assert wire.sampling_from_proto(router_pb.SamplingParams()) == Sampling()
    assert wire.sampling_from_proto(router_pb.SamplingParams(temperature=0)).greedy
    assert wire.sampling_from_proto(wire.sampling_to_proto(SAMPLING)) == SAMPLING


def test_a_session_survives_open_in_chunks_of_bounded_size() -> None:
    spec = SessionSpec(
        session_id=2**64 - 1,
        peer="router-a",
        context=tuple(range(40_000)),
        prompt_length=39_000,
        sampling=SAMPLING,
        rule=Rule.COUPLED,
        verify_key=2**64 - 2,
        draft_key=5,
        max_output_tokens=1500,
        stop_token_ids=frozenset({2, 9}),
        lease_ms=1234,
        logprobs=0,
        cache_salt=b"tenant",
        priority=-3,
    )
    messages = list(wire.verify_open_messages(spec))
    assert [message.HasField("header") for message in messages] == [True, False, False]
    assert max(message.ByteSize() for message in messages) < 80_000
    context = [token for message in messages for token in message.token_ids]
    assert wire.session_spec_from_proto(messages[0].header, context) == spec


def test_an_absent_logprobs_is_not_zero() -> None:
    spec = SessionSpec(1, "r", (1,), 1, Sampling(), Rule.BLOCK, 1, 2, 3)
    (message,) = wire.verify_open_messages(spec)
    assert wire.session_spec_from_proto(message.header, [1]).logprobs is None


def test_blocks_results_asks_and_infos_survive_the_wire() -> None:
    block = Block(17, (4, 5), (b"row-one!", b"row-two!"))
    assert wire.block_from_entry(wire.block_to_entry(3, block)) == block
    for finish, refusal in ((None, None), *((f, r) for f in FinishReason for r in BlockRefusal)):
        result = StepResult(
            session_id=3,
            position=17,
            token_ids=(4, 6),
            num_accepted=1,
            num_drafted=2,
            logprobs=(TokenLogprob(-0.5, ((4, -0.5), (1, -1.0))), TokenLogprob(-2.0)),
            finish_reason=finish,
            stop_token_id=0,
            block_refusal=refusal,
            timing=VerifyTiming(1, 2, 3, 4),
            batch_size=8,
        )
        assert wire.step_result_from_entry(wire.step_result_to_entry(result)) == result
    ask = DraftAsk(3, 17, 2**63, (4, 6), 5, SAMPLING, Rule.TOKEN, 2**64 - 1, 64, 2, 40, True)
    assert wire.draft_ask_from_entry(wire.draft_ask_to_entry(ask)) == ask
    info = ServiceInfo(1, "aa", "bb", 100, 2048, "hf", "tiny", "0.1.0", b"1234", 16)
    assert wire.service_info_from_proto(wire.service_info_to_proto(info)) == info


def test_every_reason_has_a_number_on_the_wire_and_no_two_share_one() -> None:
    tables = (
        wire.RULE_TO_PROTO,
        wire.FINISH_TO_PROTO,
        wire.REFUSAL_TO_PROTO,
        wire.DRAFT_END_TO_PROTO,
        wire.SOURCE_TO_PROTO,
        wire.ENTRY_ERROR_TO_PROTO,
    )
    kinds = (Rule, FinishReason, BlockRefusal, DraftEndReason, ContextSource, EntryErrorReason)
    for table, kind in zip(tables, kinds, strict=True):
        assert set(table) == set(kind)
        assert 0 not in table.values()
        assert len(set(table.values())) == len(table)


def test_a_refusal_of_a_later_version_is_still_one() -> None:
    entry = wire.step_result_to_entry(StepResult(1, 2, (3,), 0, 0))
    assert wire.step_result_from_entry(entry).block_refusal is None
    entry.block_refusal = 99  # type: ignore[assignment]
    assert wire.step_result_from_entry(entry).block_refusal is not None


def test_a_finish_reason_of_a_later_version_ends_the_text() -> None:
    entry = wire.step_result_to_entry(StepResult(1, 2, (3,), 0, 0))
    entry.finish_reason = 99  # type: ignore[assignment]
    assert wire.step_result_from_entry(entry).finish_reason is not None


def test_a_result_without_drafts_has_no_reward() -> None:
    """The reward is absent at length 0, not zero."""
    entry = wire.step_result_to_entry(StepResult(1, 2, (3,), 0, 0))
    assert not entry.HasField("reward")
    assert wire.step_result_to_entry(StepResult(1, 2, (3,), 0, 2)).reward == 0


def test_the_services_are_called_as_the_protos_call_them() -> None:
    named = [(DRAFT_SERVICE, draft_pb), (ROUTER_SERVICE, router_pb), (VERIFIER_SERVICE, verifier_pb)]
    for name, module in named:
        assert [each.full_name for each in module.DESCRIPTOR.services_by_name.values()] == [name]

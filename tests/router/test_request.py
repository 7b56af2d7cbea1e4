from collections.abc import Callable

import pytest
from router_parts import EVERYBODY, Words, arm_facts, make_offer

from specmesh.router.arms import DraftScope
from specmesh.router.callers import Caller
from specmesh.router.request import Plan, plan_request
from specmesh.runtime.errors import ContextTooLong, InvalidValue, MeshError, NotAllowed, UnknownField, UnknownModel
from specmesh.runtime.errors import UnsupportedOption as Unsupported
from specmesh.runtime.types import Rule
from specmesh.v1 import router_service_pb2 as pb

BAR_SHADY = Caller("barred", frozenset({"good"}), roles=frozenset(), max_priority=3)


def request(**fields: object) -> pb.GenerateRequest:
    defaults: dict[str, object] = {"tokens": {"ids": [5, 6, 7]}, "stop": {"max_output_tokens": 10}}
    return pb.GenerateRequest(**(defaults | fields))


def planned(caller: Caller = EVERYBODY, **fields: object) -> Plan:
    return plan_request(request(**fields), caller, make_offer())


def test_absent_fields_take_their_documented_values() -> None:
    plan = planned()
    assert plan.sampling.temperature == 1
    assert plan.sampling.top_p == 1
    assert not plan.sampling.has_penalties
    assert plan.prompt == (5, 6, 7)
    assert plan.continuation == ()
    assert plan.stop_token_ids == {2}
    assert plan.logprobs is None
    assert plan.max_block_length is None
    assert len(plan.request_id) == 32


def test_zero_is_not_absent() -> None:
    """C40: temperature absent is 1, temperature 0 is greedy; a seed of 0 is a seed."""
    assert planned(sampling={"temperature": 0}).sampling.greedy
    assert planned(sampling={"seed": 0}).seed == 0
    assert planned(draft={"max_block_length": 0}).max_block_length == 0
    assert planned(output={"logprobs": 0}).logprobs == 0


@pytest.mark.parametrize(
    ("caller", "fields", "rule"),
    [
        (BAR_SHADY, {}, Rule.BLOCK),
        (EVERYBODY, {}, Rule.COUPLED),
        (EVERYBODY, {"draft": {"mode": "DRAFT_MODE_OFF"}}, Rule.BLOCK),
        (EVERYBODY, {"draft": {"mode": "DRAFT_MODE_ONLY", "arms": ["good"]}}, Rule.BLOCK),
        (EVERYBODY, {"draft": {"mode": "DRAFT_MODE_ONLY", "arms": ["shady"]}}, Rule.COUPLED),
        (BAR_SHADY, {"sampling": {"seed": 1}}, Rule.COUPLED),
        (BAR_SHADY, {"sampling": {"rule": "VERIFICATION_RULE_COUPLED"}}, Rule.COUPLED),
        (EVERYBODY, {"sampling": {"rule": "VERIFICATION_RULE_TOKEN"}}, Rule.TOKEN),
        (EVERYBODY, {"sampling": {"rule": "VERIFICATION_RULE_BLOCK"}}, Rule.BLOCK),
    ],
)
def test_rule_defaults_to_block_where_no_seed_and_no_untrusted_pool_is_involved(
    caller: Caller, fields: dict[str, object], rule: Rule
) -> None:
    assert planned(caller, **fields).rule is rule


@pytest.mark.parametrize("rule", ["VERIFICATION_RULE_BLOCK", "VERIFICATION_RULE_TOKEN"])
def test_a_seed_that_the_rule_cannot_keep_is_refused(rule: str) -> None:
    with pytest.raises(InvalidValue, match="seed") as caught:
        planned(sampling={"seed": 0, "rule": rule})
    assert caught.value.field == "sampling.rule"


def test_untrusted_arms_that_send_rows_are_out_under_block_and_token_only() -> None:
    liar, honest = arm_facts("shady", trusted=False), arm_facts("shady", trusted=False, sends_rows=False)
    block = planned(sampling={"rule": "VERIFICATION_RULE_BLOCK"}).scope
    assert not block.permits(liar)
    assert block.permits(honest)
    assert block.permits(arm_facts("good"))
    assert planned().scope.permits(liar)
    assert planned(sampling={"rule": "VERIFICATION_RULE_BLOCK", "temperature": 0}).scope.permits(liar)


def test_a_request_narrows_the_arms_and_never_widens_them() -> None:
    """C42: of a pool that the caller may not reach, nothing is permitted, whatever the request says."""
    shady = arm_facts("shady", trusted=False)
    assert not planned(BAR_SHADY).scope.permits(arm_facts("shady"))
    assert planned(draft={"mode": "DRAFT_MODE_OFF"}).scope == DraftScope(frozenset(), needs_trust=True)
    only = planned(draft={"mode": "DRAFT_MODE_ONLY", "arms": [shady.name]}).scope
    assert only.permits(shady)
    assert not only.permits(arm_facts("good"))
    with pytest.raises(InvalidValue) as caught:
        planned(BAR_SHADY, draft={"mode": "DRAFT_MODE_ONLY", "arms": ["good", "shady"]})
    assert caught.value.field == "draft.arms[1]"


BAD: list[tuple[dict[str, object], type[MeshError], str]] = [
    ({"model": "other"}, UnknownModel, "model"),
    ({"request_id": "no spaces"}, InvalidValue, "request_id"),
    ({"request_id": "x" * 65}, InvalidValue, "request_id"),
    ({"tokens": None}, InvalidValue, "input"),
    ({"tokens": {"ids": []}}, InvalidValue, "tokens.ids"),
    ({"tokens": {"ids": [1, 100]}}, InvalidValue, "tokens.ids[1]"),
    ({"tokens": {"ids": [1] * 64}}, ContextTooLong, "tokens.ids"),
    ({"tokens": None, "text": ""}, InvalidValue, "text"),
    ({"tokens": None, "text": "é" * 501}, ContextTooLong, "text"),
    ({"tokens": None, "chat": {}}, InvalidValue, "chat.messages"),
    ({"tokens": None, "chat": {"messages": [{"role": "tool"}]}}, InvalidValue, "chat.messages[0].role"),
    ({"tokens": None, "chat": {"messages": [{"role": "user"}] * 21}}, InvalidValue, "chat.messages"),
    ({"draft": {"mode": "DRAFT_MODE_ONLY", "arms": ["good"] * 65}}, InvalidValue, "draft.arms"),
    ({"draft": {"mode": "DRAFT_MODE_ONLY", "arms": ["good", "x" * 129]}}, InvalidValue, "draft.arms[1]"),
    ({"continuation_token_ids": [100]}, InvalidValue, "continuation_token_ids[0]"),
    ({"continuation_token_ids": [9] * 11}, InvalidValue, "continuation_token_ids"),
    ({"continuation_token_ids": [2, 9]}, InvalidValue, "continuation_token_ids"),
    ({"sampling": {"temperature": -1}}, InvalidValue, "sampling.temperature"),
    ({"sampling": {"temperature": float("nan")}}, InvalidValue, "sampling.temperature"),
    ({"sampling": {"temperature": float("inf")}}, InvalidValue, "sampling.temperature"),
    ({"sampling": {"top_p": 0}}, InvalidValue, "sampling.top_p"),
    ({"sampling": {"top_p": 1.5}}, InvalidValue, "sampling.top_p"),
    ({"sampling": {"top_p": -0.1}}, InvalidValue, "sampling.top_p"),
    ({"sampling": {"top_p": float("nan")}}, InvalidValue, "sampling.top_p"),
    ({"sampling": {"min_p": 2}}, InvalidValue, "sampling.min_p"),
    ({"sampling": {"repetition_penalty": 0}}, InvalidValue, "sampling.repetition_penalty"),
    ({"sampling": {"logit_bias": {100: 1.0}}}, InvalidValue, "sampling.logit_bias"),
    ({"sampling": {"rule": 9}}, InvalidValue, "sampling.rule"),
    ({"stop": {}}, InvalidValue, "stop.max_output_tokens"),
    ({"stop": {"max_output_tokens": 65}}, InvalidValue, "stop.max_output_tokens"),
    ({"stop": {"max_output_tokens": 1, "strings": [""]}}, InvalidValue, "stop.strings[0]"),
    ({"stop": {"max_output_tokens": 1, "strings": ["a", "é" * 129]}}, InvalidValue, "stop.strings[1]"),
    ({"stop": {"max_output_tokens": 1, "strings": ["a"] * 17}}, InvalidValue, "stop.strings"),
    ({"stop": {"max_output_tokens": 1, "token_ids": [100]}}, InvalidValue, "stop.token_ids[0]"),
    ({"stop": {"max_output_tokens": 1, "token_ids": [1] * 65}}, InvalidValue, "stop.token_ids"),
    ({"draft": {"mode": 9}}, InvalidValue, "draft.mode"),
    ({"draft": {"arms": ["good"]}}, InvalidValue, "draft.arms"),
    ({"draft": {"mode": "DRAFT_MODE_ONLY"}}, InvalidValue, "draft.arms"),
    ({"draft": {"mode": "DRAFT_MODE_ONLY", "arms": ["good", "who"]}}, InvalidValue, "draft.arms[1]"),
    ({"output": {"logprobs": 21}}, InvalidValue, "output.logprobs"),
    ({"output": {"min_chunk_interval": {"seconds": -1}}}, InvalidValue, "output.min_chunk_interval"),
    ({"output": {"min_chunk_interval": {"seconds": 1, "nanos": -5}}}, InvalidValue, "output.min_chunk_interval"),
    ({"output": {"min_chunk_interval": {"seconds": 61}}}, InvalidValue, "output.min_chunk_interval"),
    ({"priority": 11}, InvalidValue, "priority"),
    ({"priority": -11}, InvalidValue, "priority"),
    ({"workload": "poetry"}, InvalidValue, "workload"),
]


@pytest.mark.parametrize(("fields", "error", "field"), BAD, ids=[f"{b[2]}-{i}" for i, b in enumerate(BAD)])
def test_a_bad_field_is_named(fields: dict[str, object], error: type[MeshError], field: str) -> None:
    """C17, C21: each bad value is refused by its own name; the next request is planned all the same."""
    with pytest.raises(error) as caught:
        planned(**fields)
    assert caught.value.field == field
    assert planned()


def test_what_cannot_fit_by_its_size_is_not_tokenized() -> None:
    words = Words()
    offer = make_offer(text=words)
    with pytest.raises(ContextTooLong, match=r"^text: at least 64 tokens; the context of 64 tokens must hold"):
        plan_request(request(tokens=None, text="x" * 639), EVERYBODY, offer)
    long = {"messages": [{"role": "user", "content": "x" * 319}] * 2}  # and a space between them
    with pytest.raises(ContextTooLong, match=r"^chat\.messages: at least 64 tokens; the context of 64 tokens"):
        plan_request(request(tokens=None, chat=long), EVERYBODY, offer)
    assert words.num_encoded == 0
    for text in ("word " * 63, "x" * 630):
        plan_request(request(tokens=None, text=text), EVERYBODY, offer)
    with pytest.raises(InvalidValue, match=r"21 messages; limits\.max_messages is 20"):
        plan_request(request(tokens=None, chat={"messages": [{"role": "user"}] * 21}), EVERYBODY, offer)
    assert words.num_encoded == 2


def test_a_continuation_that_is_too_long_is_refused_before_its_ids_are_looked_at() -> None:
    with pytest.raises(InvalidValue, match=r"^continuation_token_ids: 11 tokens; max_output_tokens is 10"):
        planned(continuation_token_ids=[100] * 11)


def test_an_unknown_arm_is_refused_with_the_pools_that_the_caller_may_name() -> None:
    """And says nothing of the others, nor of digests, which only operators list; nor more than a few names."""
    many = frozenset(f"pool-{index:03}" for index in range(1000))
    for caller, there in (
        (EVERYBODY, "there are the pools good, shady"),
        (BAR_SHADY, "there are the pools good"),
        (Caller("none", frozenset()), "there is none"),
        (Caller("many", many), f"there are the pools {', '.join(sorted(many)[:16])} and 984 more"),
        (Caller("few", frozenset(sorted(many)[:16])), f"there are the pools {', '.join(sorted(many)[:16])}"),
    ):
        with pytest.raises(InvalidValue) as caught:
            planned(caller, draft={"mode": "DRAFT_MODE_ONLY", "arms": ["who"]})
        assert caught.value.message == f"draft.arms[0]: no such arm or pool; {there}"
    with pytest.raises(InvalidValue, match="there is none"):
        planned(Caller("none", frozenset()), draft={"mode": "DRAFT_MODE_ONLY", "arms": ["who"]})


def unknown(change: Callable[[pb.GenerateRequest], None]) -> pb.GenerateRequest:
    message = request(sampling={"temperature": 0})
    change(message)
    return message


def test_an_unknown_field_is_refused_by_its_number() -> None:
    """C40: protobuf would skip it in silence."""
    for change in (
        lambda message: message.MergeFromString(b"\x80\x04\x01"),
        lambda message: message.sampling.MergeFromString(b"\x80\x04\x01"),
    ):
        with pytest.raises(UnknownField, match="64"):
            plan_request(unknown(change), EVERYBODY, make_offer())


def test_text_needs_a_tokenizer() -> None:
    offer = make_offer(text=None)
    for fields, field in (
        ({"tokens": None, "text": "a b"}, "text"),
        ({"stop": {"max_output_tokens": 1, "strings": ["a"]}}, "stop.strings"),
    ):
        with pytest.raises(Unsupported) as caught:
            plan_request(request(**fields), EVERYBODY, offer)
        assert caught.value.field == field


def test_text_and_chat_become_prompts() -> None:
    assert planned(tokens=None, text="a b c").prompt == (3, 4, 5)
    chat = {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "a b"}]}
    assert planned(tokens=None, chat=chat).prompt == (3, 4, 5)


def test_stop_ids_hold_eos_unless_it_is_ignored() -> None:
    assert planned(stop={"max_output_tokens": 3, "token_ids": [9]}).stop_token_ids == {2, 9}
    assert planned(stop={"max_output_tokens": 3, "token_ids": [9], "ignore_eos": True}).stop_token_ids == {9}


def test_priority_is_capped_and_step_reports_need_their_role() -> None:
    assert planned(priority=10).priority == 10
    assert planned(BAR_SHADY, priority=10).priority == 3
    with pytest.raises(NotAllowed, match="debug"):
        planned(BAR_SHADY, output={"step_reports": True})


def test_a_workload_is_one_of_the_configured_names() -> None:
    assert planned(workload="code").workload == "code"


def test_refusals_hold_no_text_and_no_ids() -> None:
    secret = "sesame " * 200
    with pytest.raises(ContextTooLong) as caught:
        planned(tokens=None, text=secret)
    assert "sesame" not in caught.value.message

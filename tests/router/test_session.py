from dataclasses import replace
from typing import Any

import pytest
from router_parts import INFO, counting_keys, make_plan, make_session

from specmesh.router.arms import DraftScope
from specmesh.router.session import Session, cut_result
from specmesh.runtime.context import context_hash
from specmesh.runtime.types import FinishReason, Rule, StepResult


def emitted(*token_ids: int, accepted: int = 0, drafted: int = 0, **more: object) -> StepResult:
    return StepResult(77, 3, token_ids, accepted, drafted, **more)  # type: ignore[arg-type]


def test_verify_and_draft_key_are_drawn_independently() -> None:
    session = make_session()
    assert (session.verify_key, session.draft_key) == (1, 2)
    assert session.seed is None


@pytest.mark.parametrize(("seed", "key"), [(None, 1), (0, 0), (2**64 - 1, 2**64 - 1)])
def test_coupled_shares_the_seed_and_draws_one_when_none_was_given(seed: int | None, key: int) -> None:
    session = make_session(rule=Rule.COUPLED, seed=seed)
    assert (session.verify_key, session.draft_key, session.seed) == (key, key, key)


def test_a_draft_is_never_told_the_verify_key() -> None:
    """C37: the draft's entry carries the draft key only."""
    session = make_session()
    assert session.ask(0, 4, 100).draft_key == session.draft_key != session.verify_key


def test_commit_moves_the_position_and_the_hash_follows() -> None:
    session = make_session(continuation=(8,))
    session.commit(emitted(9, 10, accepted=1, drafted=4))
    ask = session.ask(4, 2, 50)
    assert ask.position == session.position == 6
    assert ask.delta_token_ids == (9, 10)
    assert ask.context_hash == context_hash([5, 6, 7, 8, 9, 10])
    assert session.output_offset == 3
    assert (session.usage.num_output, session.usage.num_drafted, session.usage.num_accepted) == (2, 4, 1)


def test_no_draft_is_asked_for_beyond_the_last_token() -> None:
    """C10: max_tokens 1 asks for no drafts; C21: prompt 60 of 64 leaves room for three drafts and the target's own."""
    assert make_session(max_output_tokens=1).max_block_length == 0
    assert make_session(max_output_tokens=5).max_block_length == 4
    assert make_session(max_output_tokens=5, continuation=(8, 9)).max_block_length == 2
    assert make_session(prompt=(5,) * 60, max_output_tokens=60).max_block_length == 3


def test_block_length_is_bounded_by_request_and_verifier() -> None:
    assert make_session(max_output_tokens=50, max_block_length=3).max_block_length == 3
    plan = make_plan(max_output_tokens=50, max_block_length=9)
    session = Session(plan, session_id=1, target=replace(INFO, max_block_length=6), draw_key=lambda: 1)
    assert session.max_block_length == 6


@pytest.mark.parametrize(
    ("continuation", "reason"),
    [
        ((), None),
        ((8,), None),
        ((8, 2), FinishReason.STOP),
        ((8, 9, 10), FinishReason.LENGTH),
        ((8, 9, 2), FinishReason.STOP),
    ],
)
def test_a_continuation_that_is_complete_needs_no_step(
    continuation: tuple[int, ...], reason: FinishReason | None
) -> None:
    assert make_session(max_output_tokens=3, continuation=continuation).ended_by_continuation() is reason


def test_spec_resumes_at_the_present_position() -> None:
    session = make_session()
    session.commit(emitted(9, 10))
    spec = session.spec(session_id=5, peer="p", lease_ms=1000, priority=3)
    assert (spec.session_id, spec.prompt_length, spec.context) == (5, 3, (5, 6, 7, 9, 10))
    assert spec.priority == 3
    assert (spec.verify_key, spec.draft_key) == (session.verify_key, session.draft_key)


@pytest.mark.parametrize(("num_tokens", "accepted", "drafted"), [(1, 1, 1), (2, 2, 2), (3, 2, 4)])
def test_a_step_cut_at_a_stop_string_counts_nothing_after_it(num_tokens: int, accepted: int, drafted: int) -> None:
    cut = cut_result(emitted(9, 10, 11, accepted=2, drafted=4), num_tokens)
    assert cut.token_ids == (9, 10, 11)[:num_tokens]
    assert (cut.num_accepted, cut.num_drafted, cut.finish_reason) == (accepted, drafted, FinishReason.STOP)


def test_a_session_that_is_held_out_asks_no_draft_for_anything() -> None:
    session = make_session()
    held = Session(make_plan(), session_id=1, target=INFO, draw_key=counting_keys(), held_out=True)
    assert session.max_block_length > 0
    assert held.max_block_length == 0


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, True),
        ({"scope": DraftScope(frozenset())}, False),
        ({"scope": DraftScope(frozenset({"good"}), frozenset({"good"}))}, False),
        ({"max_block_length": 2}, False),
    ],
)
def test_only_sessions_that_leave_drafts_to_the_policy_may_be_held_out(changes: dict[str, Any], free: bool) -> None:
    assert make_plan(**changes).leaves_drafts_to_policy is free

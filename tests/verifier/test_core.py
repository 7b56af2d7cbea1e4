"""The engine's decisions, stepped by hand with a clock that is set by hand."""

from verifier_parts import make_spec, successor_logits, table_stepper


def test_a_step_without_drafts_emits_one_token() -> None:
    stepper = table_stepper(successor_logits({}, 10))
    stepper.open(make_spec([3, 4]))
    result = stepper.step(1, 2)
    assert (result.token_ids, result.num_accepted, result.num_drafted, result.reward) == ((5,), 0, 0, None)


def test_right_drafts_are_kept_up_to_the_first_wrong_one() -> None:
    stepper = table_stepper(successor_logits({}, 10))
    stepper.open(make_spec([3, 4]))
    result = stepper.step(1, 2, [5, 6, 9, 0])
    assert (result.token_ids, result.num_accepted, result.reward) == ((5, 6, 7), 2, 0.5)
    assert stepper.step(1, 5, [8, 9]).token_ids == (8, 9, 0)

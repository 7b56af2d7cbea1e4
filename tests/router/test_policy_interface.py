"""What every policy promises: legal choices, validated settings; `fixed`; arithmetic of block lengths."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specmesh.router.policies import (
    PLAIN,
    POLICIES,
    Arm,
    ArmView,
    Choice,
    PolicySettings,
    StepObservation,
    StepSeconds,
    StepView,
    expected_tokens,
    make_policy,
)

A, B = Arm("code", "a" * 64), Arm("prose", "b" * 64)
arm_views = st.lists(
    st.builds(ArmView, st.sampled_from([A, B, Arm("code", "c" * 64)]), st.integers(0, 12)),
    max_size=3,
    unique_by=lambda view: view.arm,
)
views = st.builds(StepView, st.integers(0, 3), st.integers(1, 99), st.integers(0, 12), arm_views.map(tuple))


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(deadline=None)  # a busy machine is no fault
@given(steps=st.lists(st.tuples(views, st.integers(0, 12), st.booleans()), max_size=20), seed=st.integers(0, 9))
def test_a_choice_is_among_what_is_offered_and_no_longer_than_allowed(
    name: str, steps: list[tuple[StepView, int, bool]], seed: int
) -> None:
    policy = make_policy(name, seed=seed, settings=PolicySettings())
    for view, accepted, ended in steps:
        choice = policy.choose(view)
        limits = {arm_view.arm: arm_view.max_block_length for arm_view in view.arms}
        if choice != PLAIN:
            assert choice.arm is not None
            assert 0 < choice.block_length <= min(limits[choice.arm], view.max_block_length)
        accepted = min(accepted, choice.block_length)
        seconds = StepSeconds(0.01)
        policy.observe(
            StepObservation(view.session_id, choice, choice.block_length, accepted, accepted + 1, seconds, ended)
        )
        policy.forget(view.session_id)


def test_fixed_plays_the_arm_that_its_settings_name() -> None:
    view = StepView(1, 5, 8, (ArmView(A, 3), ArmView(B, 8)))
    for arm, length, expected in [
        ("", 4, Choice(A, 3)),
        ("prose", 4, Choice(B, 4)),
        ("prose@bbbbbbbb", 9, Choice(B, 8)),
        ("prose", 0, PLAIN),
        ("gone", 4, PLAIN),
    ]:
        settings = PolicySettings(fixed_arm=arm, fixed_length=length)
        assert make_policy("fixed", seed=0, settings=settings).choose(view) == expected


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"candidate_lengths": ()}, "candidate_lengths"),
        ({"candidate_lengths": (-1,)}, "candidate_lengths"),
        ({"candidate_lengths": (65,)}, "candidate_lengths"),
        ({"reward": "tokens"}, "reward"),
        ({"reward": "acceptance", "candidate_lengths": (0,)}, "candidate_lengths"),
        ({"exploration": 0}, "exploration"),
        ({"exploration": float("nan")}, "exploration"),
        ({"fixed_length": -1}, "fixed_length"),
        ({"lengths": (1,)}, "lengths"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        PolicySettings.model_validate(settings)


def test_candidate_lengths_are_sorted_and_unique() -> None:
    assert PolicySettings(candidate_lengths=(4, 0, 4, 2)).candidate_lengths == (0, 2, 4)


def test_an_arm_is_named_by_pool_and_short_digest() -> None:
    assert A.name == "code@aaaaaaaa"


def test_expected_tokens_of_independent_acceptance() -> None:
    """C30: acceptance .8, length 4: 3.3616; the ends of the range are exact."""
    assert expected_tokens(0.8, 4) == pytest.approx(3.3616, abs=1e-12)
    assert expected_tokens(1.0, 4) == 5
    assert expected_tokens(0.0, 4) == 1
    assert expected_tokens(0.5, 0) == 1


@pytest.mark.parametrize(("acceptance", "length"), [(-0.1, 4), (1.1, 4), (float("nan"), 4), (0.5, -1)])
def test_expected_tokens_refuses_what_is_no_probability_or_length(acceptance: float, length: int) -> None:
    with pytest.raises(ValueError, match="must"):
        expected_tokens(acceptance, length)

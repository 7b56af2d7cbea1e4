"""The bandits: regret, what they learn from, and arms that come and go."""

import random
from collections import Counter
from collections.abc import Callable
from statistics import mean

import pytest

from specmesh.router.policies import (
    PLAIN,
    Arm,
    ArmView,
    Choice,
    Policy,
    PolicySettings,
    StepObservation,
    StepSeconds,
    StepView,
    make_policy,
)

BANDITS = ("ucb1", "thompson")
A, B, C = (Arm(pool, pool * 64) for pool in "abc")
Outcome = tuple[int, float]  # accepted, seconds


def view_of(*arms: Arm, longest: int = 8) -> StepView:
    return StepView(1, 10, longest, tuple(ArmView(arm, 8) for arm in arms))


def observed(
    choice: Choice, accepted: int, seconds: float, *, drafted: int | None = None, ended: bool = False
) -> StepObservation:
    drafted = choice.block_length if drafted is None else drafted
    return StepObservation(1, choice, drafted, accepted, accepted + 1, StepSeconds(seconds), ended)


def play(policy: Policy, view: StepView, rounds: int, world: Callable[[Choice], Outcome]) -> Counter[Choice]:
    """How often each pair was chosen in `world`."""
    counts: Counter[Choice] = Counter()
    for _ in range(rounds):
        choice = policy.choose(view)
        counts[choice] += 1
        policy.observe(observed(choice, *world(choice)))
    return counts


def regret_of(name: str, seed: int) -> float:
    """Expected acceptances lost over 10,000 rounds on coins of 0.3, 0.7 and 0.5."""
    chances = {A: 0.3, B: 0.7, C: 0.5}
    policy = make_policy(name, seed=seed, settings=PolicySettings(candidate_lengths=(1,), reward="acceptance"))
    coin = random.Random(1_000 + seed)
    counts = play(
        policy,
        view_of(A, B, C),
        10_000,
        lambda choice: (int(coin.random() < chances[choice.arm]), 1.0),  # type: ignore[index]
    )
    return sum((0.7 - chances[choice.arm]) * count for choice, count in counts.items())  # type: ignore[index]


@pytest.mark.parametrize(("name", "most"), [("ucb1", 100.2), ("thompson", 18.9)])
def test_regret_is_within_the_target(name: str, most: float) -> None:
    assert mean(regret_of(name, seed) for seed in range(20)) <= most


def goodput_world(seed: int) -> Callable[[Choice], Outcome]:
    """Independent acceptance .5 / .8 / .3 for A / B / C, one ms a draft, 10 ms a verification."""
    coin = random.Random(seed)
    acceptance = {A: 0.5, B: 0.8, C: 0.3, None: 0.0}

    def world(choice: Choice) -> Outcome:
        accepted = 0
        while accepted < choice.block_length and coin.random() < acceptance[choice.arm]:
            accepted += 1
        return accepted, 0.010 + 0.001 * choice.block_length

    return world


@pytest.mark.parametrize("name", BANDITS)
def test_bandits_find_the_best_arm_and_length(name: str) -> None:
    policy = make_policy(name, seed=3, settings=PolicySettings())
    counts = play(policy, view_of(A, B, C), 2_000, goodput_world(3))
    assert counts[Choice(B, 8)] + counts[Choice(B, 4)] > 1_600


@pytest.mark.parametrize("name", BANDITS)
def test_plain_decoding_wins_when_drafts_cost_more_than_they_bring(name: str) -> None:
    policy = make_policy(name, seed=5, settings=PolicySettings())
    counts = play(policy, view_of(A, B), 1_000, lambda choice: (0, 0.010 + 0.002 * choice.block_length))
    assert counts[PLAIN] > 700


@pytest.mark.parametrize("name", BANDITS)
def test_goodput_prefers_the_longer_block_that_brings_more_tokens_per_second(name: str) -> None:
    """C27: 4 accepted of 8 in 1.40 ms beats 3 accepted of 4 in 1.20 ms, though its acceptance is lower."""
    outcomes = {A: (3, 0.00120), B: (4, 0.00140)}
    lengths = {A: 4, B: 8}
    view = StepView(1, 10, 8, tuple(ArmView(arm, lengths[arm]) for arm in (A, B)))
    favourites = {}
    for reward in ("goodput", "acceptance"):
        settings = PolicySettings(candidate_lengths=(8,), reward=reward)
        policy = make_policy(name, seed=7, settings=settings)
        counts = play(policy, view, 3_000, lambda choice: outcomes[choice.arm])  # type: ignore[index]
        favourites[reward] = counts.most_common(1)[0][0]
    assert favourites == {"goodput": Choice(B, 8), "acceptance": Choice(A, 4)}


@pytest.mark.parametrize("name", BANDITS)
@pytest.mark.parametrize("reward", ["goodput", "acceptance"])
def test_a_step_that_ended_the_session_does_not_count_unverified_drafts_as_rejections(name: str, reward: str) -> None:
    """Two policies see the same steps; one of them sees besides many steps of B that EOS cut after one draft."""
    settings = PolicySettings(candidate_lengths=(0, 8), reward=reward)
    shares = []
    for num_ended in (0, 50):
        policy = make_policy(name, seed=11, settings=settings)
        for _ in range(60):
            policy.observe(observed(Choice(A, 8), 4, 0.02))
            policy.observe(observed(Choice(B, 8), 6, 0.02))
        for _ in range(num_ended):
            policy.observe(observed(Choice(B, 8), 0, 0.02, drafted=0, ended=True))
        shares.append(
            play(policy, view_of(A, B), 100, lambda choice: (6 if choice.arm == B else 4, 0.02))[Choice(B, 8)]
        )
    assert shares[1] >= shares[0] - 5
    assert shares[1] > 80


@pytest.mark.parametrize("name", BANDITS)
def test_short_sessions_that_end_in_their_first_step_do_not_pin_the_policy_to_an_untried_pair(name: str) -> None:
    policy = make_policy(name, seed=13, settings=PolicySettings(candidate_lengths=(0, 8)))
    counts: Counter[Choice] = Counter()
    for _ in range(200):
        choice = policy.choose(view_of(A, B))
        counts[choice] += 1
        policy.observe(observed(choice, 0, 0.01, ended=True))
    assert min(counts[PLAIN], counts[Choice(A, 8)], counts[Choice(B, 8)]) > 20


@pytest.mark.parametrize("name", BANDITS)
@pytest.mark.parametrize("factor", [5_000.0, 1 / 5_000])
@pytest.mark.parametrize("at", [0, 3, 100])
def test_one_outlier_neither_sinks_nor_blinds(name: str, factor: float, at: int) -> None:
    """C29: one step of 5,000 times the usual goodput, or 1/5,000 of it, wherever it falls."""
    policy = make_policy(name, seed=17, settings=PolicySettings(candidate_lengths=(4,)))
    steps = 0

    def world(choice: Choice) -> Outcome:
        nonlocal steps
        steps += 1
        accepted, seconds = (3, 0.02) if choice.arm == B else (1, 0.02)
        return accepted, seconds / factor if steps == at + 1 else seconds

    play(policy, view_of(A, B), 200, world)
    counts = play(policy, view_of(A, B), 300, world)
    assert counts[Choice(B, 4)] > 200


@pytest.mark.parametrize("name", BANDITS)
def test_an_arm_that_appears_is_tried_and_one_that_is_gone_is_not_chosen(name: str) -> None:
    policy = make_policy(name, seed=19, settings=PolicySettings(candidate_lengths=(0, 4)))
    world = goodput_world(19)
    play(policy, view_of(A), 300, world)
    with_both = play(policy, view_of(A, B), 600, world)
    assert with_both[Choice(B, 4)] > 300
    without = play(policy, view_of(A), 100, world)
    assert set(without) <= {PLAIN, Choice(A, 4)}
    again = play(policy, view_of(A, B), 100, world)
    assert again[Choice(B, 4)] > 60


@pytest.mark.parametrize("name", BANDITS)
def test_an_arm_that_never_answers_loses_to_plain_decoding(name: str) -> None:
    policy = make_policy(name, seed=23, settings=PolicySettings(candidate_lengths=(0, 4)))
    counts: Counter[Choice] = Counter()
    for _ in range(400):
        choice = policy.choose(view_of(A))
        counts[choice] += 1
        policy.observe(observed(choice, 0, 0.01 if choice == PLAIN else 0.06, drafted=0))
    assert counts[PLAIN] > 330


@pytest.mark.parametrize("name", BANDITS)
def test_a_seed_makes_a_policy_repeatable(name: str) -> None:
    def run(seed: int) -> list[Choice]:
        policy = make_policy(name, seed=seed, settings=PolicySettings())
        world = goodput_world(29)
        choices = []
        for _ in range(200):
            choices.append(policy.choose(view_of(A, B)))
            policy.observe(observed(choices[-1], *world(choices[-1])))
        return choices

    assert run(1) == run(1)


@pytest.mark.parametrize("name", BANDITS)
def test_sessions_that_choose_before_any_has_answered_do_not_all_pick_the_same_pair(name: str) -> None:
    policy = make_policy(name, seed=31, settings=PolicySettings(candidate_lengths=(0, 2, 4, 8)))
    assert len({policy.choose(view_of(A, B)) for _ in range(40)}) == 7


@pytest.mark.parametrize("name", BANDITS)
def test_estimates_are_bounded_however_many_digests_pass_by(name: str) -> None:
    policy = make_policy(name, seed=37, settings=PolicySettings(candidate_lengths=(0, 4)))
    for number in range(1_000):
        arm = Arm("pool", f"{number:064d}")
        policy.observe(observed(policy.choose(view_of(arm)), 0, 0.01))
    assert len(policy._estimates) <= 256  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", BANDITS)
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_clock_that_gives_nonsense_teaches_nothing(name: str, seconds: float) -> None:
    policy = make_policy(name, seed=41, settings=PolicySettings(candidate_lengths=(4,)))
    for _ in range(20):
        policy.observe(observed(Choice(A, 4), 4, seconds))
    counts = play(policy, view_of(A, B), 500, lambda choice: (3 if choice.arm == B else 1, 0.02))
    assert counts[Choice(B, 4)] > 350

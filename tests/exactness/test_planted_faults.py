"""The law gate catches each classic fault at p < 1e-12, and passes on the same tables without it."""

from collections.abc import Callable

import law_faults as faults
import pytest
from law_harness import Delivery, Drafting, Simulation, Tables, Verify, all_arrives, random_tables
from law_statistics import first_tokens_p, law_by_context, transitions_p
from torch import Tensor

from specmesh.kernels.reference.verify import verify_batch
from specmesh.runtime.types import Rule, Sampling

CERTAIN_P = 1e-12
WORST_P = 1e-6
PLAIN = Sampling()


def p_value(
    tables: Tables,
    rule: Rule,
    drafting: Drafting,
    *,
    verify: Verify = verify_batch,
    deliver: Callable[[Delivery], Tensor] = all_arrives,
    num_sequences: int = 20_000,
    sampling: Sampling = PLAIN,
    claimed: Sampling = PLAIN,
) -> float:
    """Transitions of text sampled with `sampling`, against the law of `claimed`."""
    tokens = Simulation(
        tables, sampling, rule, drafting, num_sequences, 12, seed=77, verify=verify, deliver=deliver
    ).run()
    law_at = law_by_context(tables.target, claimed)
    return transitions_p(tokens, law_at, tables.vocabulary_size, full_history=False)


FAR = random_tables(4, 11, nearness=(0.5, 0.0), contrast=1.5)
KEYED = random_tables(3, 30, nearness=(0.0,), contrast=1.5)
SCALED = random_tables(3, 32, nearness=(0.0,), contrast=2.5)
FOUR = Drafting(length=4, row_mass=1.0)
THREE = Drafting(length=3, row_mass=1.0)


@pytest.mark.parametrize(
    ("rule", "fault", "tables", "drafting"),
    [
        (Rule.TOKEN, faults.softmax_of_the_residual, FAR, FOUR),
        (Rule.BLOCK, faults.softmax_of_the_residual, FAR, FOUR),
        (Rule.TOKEN, faults.one_uniform_twice, FAR, FOUR),
        (Rule.TOKEN, faults.full_ratio_with_truncated_residual, FAR, FOUR),
        (Rule.BLOCK, faults.full_ratio_with_truncated_residual, FAR, FOUR),
        (Rule.BLOCK, faults.numbers_keyed_by_position, KEYED, THREE),
        (Rule.BLOCK, faults.token_residual_under_block, SCALED, THREE),
        (Rule.TOKEN, faults.bonus_from_the_row_before, FAR, FOUR),
        (Rule.BLOCK, faults.bonus_from_the_row_before, FAR, FOUR),
    ],
    ids=lambda value: getattr(value, "__name__", getattr(value, "value", "")),
)
def test_a_planted_fault_is_certain_to_show(rule: Rule, fault: Verify, tables: Tables, drafting: Drafting) -> None:
    assert p_value(tables, rule, drafting, verify=fault) < CERTAIN_P
    assert p_value(tables, rule, drafting) > WORST_P


def test_a_temperature_of_095_that_is_not_applied_shows() -> None:
    tables = random_tables(4, 12)
    cool = Sampling(temperature=0.95)
    applied = {"num_sequences": 100_000, "claimed": cool}
    assert p_value(tables, Rule.BLOCK, Drafting(length=2), sampling=PLAIN, **applied) < CERTAIN_P
    assert p_value(tables, Rule.BLOCK, Drafting(length=2), sampling=cool, **applied) > WORST_P


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_a_late_block_is_cut_and_never_dropped(rule: Rule) -> None:
    """C36: with a draft that stops early, lateness depends on values: cut at what has arrived by then, all is well."""
    drafting = Drafting(length=4, stop_after=0)
    assert p_value(FAR, rule, drafting, deliver=faults.late_blocks_dropped_whole) < CERTAIN_P
    assert p_value(FAR, rule, drafting, deliver=faults.late_blocks_cut_afterwards) < CERTAIN_P
    assert p_value(FAR, rule, drafting, deliver=faults.two_tokens_arrive) > WORST_P


def test_a_block_refused_for_a_value_shows() -> None:
    """C36: a block refused because it contains token 0."""
    drafting = Drafting(length=4)
    assert p_value(FAR, Rule.BLOCK, drafting, deliver=faults.blocks_with_token_0_refused) < CERTAIN_P


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
@pytest.mark.parametrize(
    "deliver", [faults.late_blocks_dropped_whole, faults.blocks_with_token_0_refused], ids=lambda value: value.__name__
)
def test_one_hot_blocks_may_be_dropped_by_value(rule: Rule, deliver: Callable[[Delivery], Tensor]) -> None:
    drafting = Drafting(length=4, one_hot=True, stop_after=0)
    assert p_value(FAR, rule, drafting, deliver=deliver) > WORST_P


def test_coupled_does_not_mind_what_is_dropped() -> None:
    drafting = Drafting(length=4, stop_after=0)
    dropped = p_value(FAR, Rule.COUPLED, drafting, deliver=faults.blocks_with_token_0_refused)
    assert dropped > WORST_P


@pytest.mark.parametrize(("seed", "nearness", "contrast"), [(30, 0.0, 1.5), (30, 0.0, 2.5), (33, 0.4, 2.5)])
def test_block_needs_the_block_start_in_its_counters_and_token_does_not(
    seed: int, nearness: float, contrast: float
) -> None:
    """C18: numbers keyed by position alone, BLOCK at length 3, vocabulary 3: the law of four consecutive tokens."""
    tables = random_tables(3, seed, nearness=(nearness,), contrast=contrast)
    assert four_tokens_p(tables, Rule.BLOCK, faults.numbers_keyed_by_position) < CERTAIN_P
    assert four_tokens_p(tables, Rule.TOKEN, faults.numbers_keyed_by_position) > WORST_P
    assert four_tokens_p(tables, Rule.BLOCK, verify_batch) > WORST_P


def four_tokens_p(tables: Tables, rule: Rule, verify: Verify) -> float:
    tokens = Simulation(tables, PLAIN, rule, THREE, 40_000, 4, seed=78, verify=verify).run()
    return first_tokens_p(tokens, law_by_context(tables.target, PLAIN), tables.vocabulary_size)

"""Gates 1 and 4 in full through the compiled kernel on a GPU; CI has the interpreter and 300 rows of gate 4."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from compiled_verify import check_with_literal_and_reference, compiled_batch
from hypothesis import HealthCheck, given, seed, settings
from law_cases import LawCase, first_tokens_cases, law_cases
from law_statistics import first_tokens_p, law_by_context, transitions_p
from verify_batches import VerifyExample, verify_examples

from specmesh.runtime.types import Rule, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.timeout(900),
]
WORST_P = 1e-6
CHOSEN = {
    (Rule.BLOCK, 8, "narrow"), (Rule.BLOCK, 4, "stops"), (Rule.BLOCK, 8, "one_hot"),
    (Rule.TOKEN, 8, "cuts"), (Rule.TOKEN, 7, "cuts"), (Rule.TOKEN, 5, "rows"),
    (Rule.COUPLED, 8, "stops"), (Rule.COUPLED, 2, "narrow"),
}  # fmt: skip
"""Every rule, with cuts, narrow rows, drafts that stop; penalties, top-k, top-p and min-p among them."""
LAW_CASES = [case for case in law_cases(7000) if (case.rule, case.length, case.drafting) in CHOSEN]
FIRST_CASES = first_tokens_cases(8000)[::3]


def transitions_of(case: LawCase, sampling: Sampling) -> float:
    """p-value when the kernel is told this sampling."""
    verify = partial(compiled_batch, sampling=sampling)
    tokens = case.simulation(20_000, max(12, case.length + 4), verify=verify).run()
    law_at = law_by_context(case.tables.target, case.sampling)
    return transitions_p(tokens, law_at, case.vocabulary_size, full_history=case.sampling.has_penalties)


@pytest.mark.parametrize("case", LAW_CASES, ids=lambda case: case.name)
def test_transitions_follow_the_target(case: LawCase) -> None:
    assert transitions_of(case, case.sampling) > WORST_P


@pytest.mark.parametrize("case", FIRST_CASES, ids=lambda case: case.name)
def test_the_first_four_tokens_follow_the_target_jointly(case: LawCase) -> None:
    verify = partial(compiled_batch, sampling=case.sampling)
    tokens = case.simulation(100_000, 4, verify=verify).run()
    assert first_tokens_p(tokens, law_by_context(case.tables.target, case.sampling), case.vocabulary_size) > WORST_P


def test_a_temperature_that_does_not_reach_the_kernel_shows() -> None:
    """A gate that cannot fail is a defect."""
    case = next(case for case in LAW_CASES if case.rule is Rule.TOKEN and case.temperature == 0.5)
    assert transitions_of(case, replace(case.sampling, temperature=0.55)) < 1e-12


@pytest.mark.parametrize("shard", range(12))
def test_the_compiled_form_equals_the_literal_rules_and_the_reference(shard: int) -> None:
    """As many batches as the reference's gate has."""

    @seed(100 + shard)
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(example=verify_examples())
    def check(example: VerifyExample) -> None:
        check_with_literal_and_reference(example)

    check()

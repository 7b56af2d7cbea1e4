"""Drafts that lie, know too much, or are the target itself."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from law_harness import Drafting, Simulation, Tables, random_tables
from router_parts import INFO, make_plan
from torch import Tensor

from specmesh.kernels.inputs import VerifyInput
from specmesh.kernels.ops import verify
from specmesh.kernels.reference.batch import VerifyBatch, VerifyResult
from specmesh.kernels.reference.philox import key_tensor, philox, uniform_from_words
from specmesh.kernels.reference.verify import verify_batch
from specmesh.router.session import Session
from specmesh.runtime.contract import ROW_TOTAL, Purpose
from specmesh.runtime.philox import draft_draws
from specmesh.runtime.rows import check_block, draw_from_row, encode_row
from specmesh.runtime.types import BlockRefusal, Rule, Sampling

LAW = [0.001, 0.599, 0.400]
DRAWS = 20_000
START = 3


def shares(tokens: list[int], rule: Rule, *, rows: bool, keys: Sequence[int] = range(DRAWS)) -> list[float]:
    """Of the first emitted token when each token is drafted, unchecked, under the verify key beside it."""
    row = (np.arange(3, dtype=np.uint32), np.array([1, ROW_TOTAL - 2, 1], dtype=np.uint32))
    items = [
        VerifyInput(START, [token], [row] if rows else [], Sampling(), rule, key)
        for key, token in zip(keys, tokens, strict=True)
    ]
    outcomes = verify(torch.tensor(LAW).log().repeat(2 * len(tokens), 1), items, vocabulary_size=3)
    firsts = [t if o.num_accepted else o.next_token for t, o in zip(tokens, outcomes, strict=True)]
    return (np.bincount(firsts, minlength=3) / len(firsts)).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_a_draft_that_always_sends_token_0_at_weight_1_is_refused(rule: Rule) -> None:
    """C35: unchecked the output is [1, 0, 0]; deriving the token again from the row and the key refuses it."""
    assert shares([0] * DRAWS, rule, rows=True) == [1, 0, 0]
    row = encode_row(np.arange(3), np.array([1, ROW_TOTAL - 2, 1]))
    for key in range(200):
        refusal, _ = check_block([0], [row], vocabulary_size=3, draft_key=key, block_start=START)
        assert refusal is BlockRefusal.RESAMPLE_MISMATCH


def test_a_draft_that_declares_one_row_and_samples_another_is_caught_within_a_few_blocks() -> None:
    """C35: about 0.6 of the tokens that were sampled otherwise differ."""
    weights = np.array([ROW_TOTAL // 5 * 2, ROW_TOTAL // 10 * 3, 0])
    weights[2] = ROW_TOTAL - weights.sum()
    row, random = encode_row(np.arange(3), weights), np.random.default_rng(1)
    differ, first_caught = 0, []
    for key in range(300):
        tokens = random.choice(3, size=4, p=[0.3, 0.3, 0.4]).tolist()
        derived = [draw_from_row(weights, draw) for draw in draft_draws(key, START, 4).tolist()]
        differ += sum(a != b for a, b in zip(tokens, derived, strict=True))
        refusal, _ = check_block(tokens, [row] * 4, vocabulary_size=3, draft_key=key, block_start=START)
        if refusal is not None:
            first_caught.append(key)
    assert differ / 1200 == pytest.approx(0.66, abs=0.06)
    assert max(np.diff([-1, *first_caught])) <= 3


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_a_draft_that_knew_the_accept_uniforms_could_steer_them(rule: Rule) -> None:
    """C37: proposing only what will be rejected gives [0, .36, .64]. So the verify key goes to the verifier only."""
    known = uniforms(range(DRAWS))
    steering = torch.where(known >= LAW[1], 1, 0).tolist()
    assert shares(steering, rule, rows=False) == pytest.approx([0, 0.36, 0.64], abs=0.015)
    ignorant = torch.where(uniforms(range(10**6, 10**6 + DRAWS)) >= LAW[1], 1, 0).tolist()
    assert shares(ignorant, rule, rows=False) == pytest.approx(LAW, abs=0.015)


def uniforms(keys: Sequence[int]) -> Tensor:
    return uniform_from_words(philox(key_tensor(keys), (START, 0, int(Purpose.ACCEPT), 0))[0])


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_what_a_draft_is_sent_tells_it_nothing_of_the_accept_uniforms(rule: Rule) -> None:
    """C37: a draft takes its key for the verifier's. With one shared seed it would be, and give [0, .36, .64]."""
    random = np.random.default_rng(4)
    plan = make_plan(rule=rule)
    sessions = [
        Session(plan, session_id=n, target=INFO, draw_key=lambda: int(random.integers(2**63))) for n in range(DRAWS)
    ]
    believed = uniforms([session.ask(0, 1, 0).draft_key for session in sessions])
    specs = [session.spec(session_id=1, peer="p", lease_ms=1, priority=0) for session in sessions]
    steering = torch.where(believed >= LAW[1], 1, 0).tolist()
    assert shares(steering, rule, rows=False, keys=[spec.verify_key for spec in specs]) == pytest.approx(LAW, abs=0.015)


def test_under_coupled_knowing_everything_steers_nothing() -> None:
    """C38."""
    for tokens in ([0] * DRAWS, [1] * DRAWS, torch.where(uniforms(range(DRAWS)) >= 0.5, 1, 2).tolist()):
        assert shares(tokens, Rule.COUPLED, rows=False) == shares([2] * DRAWS, Rule.COUPLED, rows=False)
    assert shares([0] * DRAWS, Rule.COUPLED, rows=False) == pytest.approx(LAW, abs=0.015)


@pytest.mark.parametrize("rule", list(Rule))
def test_a_model_that_drafts_for_itself_is_accepted(rule: Rule) -> None:
    """C30: temperature 1, float32, vocabulary 128, row mass 1: acceptance above .999."""
    target = random_tables(128, 5, contrast=2.0, nearness=()).target
    counts = torch.zeros(2, dtype=torch.int64)

    def counting(batch: VerifyBatch) -> VerifyResult:
        result = verify_batch(batch)
        counts.add_(torch.stack((result.num_accepted.sum(), batch.lengths.sum())))
        return result

    drafting = Drafting(length=4, row_mass=1.0)
    tables = Tables(target, target[None])
    Simulation(tables, Sampling(), rule, drafting, 2_000, 20, seed=6, verify=counting).run()
    accepted, drafted = counts.tolist()
    assert accepted / drafted > 0.999

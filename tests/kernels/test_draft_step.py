"""`ops.draft_step` and its kin: the row sent is the row sampled from."""

import math
from collections.abc import Sequence
from math import exp, inf, log

import numpy as np
import pytest
import torch
from compiled_verify import ALIKE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verify_batches import samplings

from specmesh.kernels.inputs import DraftedToken, DraftInput, VerifyInput
from specmesh.kernels.ops import sample_sparse, score_sparse, score_tokens, verify
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import check_block, decode_row
from specmesh.runtime.types import Rule, Sampling

PLAIN = Sampling()
draft_step = ALIKE.draft_step


def ask(
    sampling: Sampling = PLAIN,
    rule: Rule = Rule.BLOCK,
    *,
    key: int = 7,
    start: int = 20,
    offset: int = 0,
    max_row: int = 128,
    row_mass: float = 0.995,
    counts: dict[int, int] | None = None,
) -> DraftInput:
    return DraftInput(start, offset, sampling, rule, key, counts or {}, max_row, row_mass)


def random_logits(seed: int, rows: int, size: int, contrast: float = 2.0) -> Tensor:
    return torch.randn((rows, size), generator=torch.Generator().manual_seed(seed)) * contrast


def entries(token: DraftedToken) -> dict[int, int]:
    assert token.row is not None
    ids, weights = decode_row(token.row)
    return dict(zip(ids.tolist(), weights.tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(
    sampling=samplings(),
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 2, 9, 200, 1100]),
    max_row=st.sampled_from([1, 2, 33, 128, 10**6]),
    row_mass=st.sampled_from([0.3, 0.995, 1.0]),
)
def test_rows_pass_the_check_and_give_their_own_token(
    sampling: Sampling, seed: int, size: int, max_row: int, row_mass: float
) -> None:
    """The draft's draw and the verifier's re-derivation are the same arithmetic."""
    items = [ask(sampling, key=seed + i, offset=0, max_row=max_row, row_mass=row_mass) for i in range(3)]
    for item, token in zip(items, draft_step(random_logits(seed, 3, size), items, vocabulary_size=size), strict=True):
        assert token.finite
        if sampling.greedy:
            assert token.row is None
            continue
        assert token.row is not None
        refusal, _ = check_block(
            [token.token_id], [token.row], vocabulary_size=size, draft_key=item.key, block_start=item.block_start
        )
        assert refusal is None
        assert len(entries(token)) <= max_row
        assert token.logprob == pytest.approx(log(entries(token)[token.token_id] / ROW_TOTAL), abs=1e-5)


def test_offsets_of_a_block_have_draws_of_their_own() -> None:
    logits = random_logits(1, 1, 50, 0.5)
    block = [draft_step(logits, [ask(offset=offset)], vocabulary_size=50)[0] for offset in range(8)]
    rows = [token.row for token in block if token.row is not None]
    refusal, _ = check_block([t.token_id for t in block], rows, vocabulary_size=50, draft_key=7, block_start=20)
    assert refusal is None
    assert len({token.token_id for token in block}) > 3


def test_a_row_is_the_fewest_ids_that_reach_the_mass() -> None:
    probs = torch.tensor([[0.05, 0.5, 0.15, 0.2, 0.1]])

    def ids(row_mass: float, max_row: int = 128) -> list[int]:
        item = ask(row_mass=row_mass, max_row=max_row)
        return list(entries(draft_step(probs.log(), [item], vocabulary_size=5)[0]))

    assert ids(0.49) == [1]
    assert ids(0.69) == [1, 3]
    assert ids(0.71) == [1, 2, 3]
    assert ids(0.71, max_row=2) == [1, 3]
    assert ids(1.0) == [0, 1, 2, 3, 4]
    assert ids(1.0, max_row=1) == [1]


def test_weights_are_the_shares_of_what_was_kept() -> None:
    token = draft_step(torch.tensor([[0.5, 0.3, 0.2]]).log(), [ask(max_row=2)], vocabulary_size=3)[0]
    row = entries(token)
    assert sum(row.values()) == ROW_TOTAL
    assert row[0] / ROW_TOTAL == pytest.approx(0.625, abs=1e-6)


def test_a_weight_is_never_0_however_small_the_probability() -> None:
    token = draft_step(torch.tensor([[0.0, -60.0, -85.0, -500.0]]), [ask(row_mass=1.0)], vocabulary_size=4)[0]
    assert entries(token) == {0: ROW_TOTAL - 2, 1: 1, 2: 1}


def test_tokens_follow_their_row() -> None:
    draws = 20_000
    items = [ask(key=key) for key in range(draws)]
    tokens = draft_step(torch.tensor([[0.5, 0.3, 0.2]]).log().expand(draws, -1), items, vocabulary_size=3)
    shares = np.bincount([token.token_id for token in tokens], minlength=3) / draws
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.02)


@pytest.mark.parametrize("rule", list(Rule))
def test_at_temperature_0_the_arg_max_comes_without_a_row(rule: Rule) -> None:
    token = draft_step(torch.tensor([[0.2, 0.5, 0.3]]).log(), [ask(Sampling(temperature=0), rule)], vocabulary_size=3)[
        0
    ]
    assert (token.token_id, token.row) == (1, None)
    assert token.logprob == pytest.approx(log(0.5), abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"top_p": 0.8, "temperature": 1.7}, {"top_k": 3}])
def test_a_coupled_draft_with_the_targets_logits_guesses_what_the_target_says(options: dict[str, float]) -> None:
    sampling = Sampling(**options)  # type: ignore[arg-type]
    logits = random_logits(5, 40, 130)
    items = [ask(sampling, Rule.COUPLED, key=key, start=11, offset=4) for key in range(40)]
    guesses = draft_step(logits, items, vocabulary_size=130)
    targets = verify(
        logits, [VerifyInput(15, [], [], sampling, Rule.COUPLED, key) for key in range(40)], vocabulary_size=130
    )
    assert [guess.token_id for guess in guesses] == [target.next_token for target in targets]
    assert all(guess.row is None for guess in guesses)


def test_logits_that_are_not_finite_are_not_sampled_from_and_harm_no_other() -> None:
    """C6: draft logits NaN: the block ends before this token."""
    logits = random_logits(2, 3, 10)
    clean = draft_step(logits, [ask(key=i) for i in range(3)], vocabulary_size=10)
    logits[1, 4] = torch.nan
    faulty = draft_step(logits, [ask(key=i) for i in range(3)], vocabulary_size=10)
    assert [token.finite for token in faulty] == [True, False, True]
    assert faulty[::2] == clean[::2]


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.COUPLED])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_head_over_a_subset_is_a_whole_head_with_the_rest_masked(rule: Rule, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, logit_bias=((3, 1.0), (8, 2.0)), frequency_penalty=0.3)
    token_map = torch.tensor([0, 3, 7, 8, 12, 30, 31])
    head = random_logits(3, 20, 7)
    whole = torch.full((20, 40), -torch.inf)
    whole[:, token_map[:6]] = head[:, :6]  # vocabulary 31: the last id of the head is padding
    items = [ask(sampling, rule, key=key, counts={7: 2, 9: 1}) for key in range(20)]
    part = draft_step(head, items, vocabulary_size=31, token_map=token_map)
    full = draft_step(whole, items, vocabulary_size=31)
    tokens = [token.token_id for token in part]
    assert tokens == [token.token_id for token in full]
    assert [token.logprob for token in part] == pytest.approx([token.logprob for token in full], abs=1e-5)
    if part[0].row is not None:
        assert [list(entries(token)) for token in part] == [list(entries(token)) for token in full]
    scores = score_tokens(head, items, tokens, vocabulary_size=31, token_map=token_map)
    for score, other in zip(scores, score_tokens(whole, items, tokens, vocabulary_size=31), strict=True):
        assert score == (pytest.approx(other[0], abs=1e-5), other[1])
    assert all(math.isfinite(score) for score, _ in scores)


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.COUPLED])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.7])
def test_the_padding_of_a_whole_head_is_neither_drafted_nor_scored(rule: Rule, temperature: float) -> None:
    """C14: real vocabulary 4, draft head 5 wide, and its padding has the largest logit."""
    logits = torch.tensor([1.0, 2.0, 3.0, 0.0, 9.0]).expand(200, -1)
    items = [ask(Sampling(temperature=temperature), rule, key=key) for key in range(200)]
    padded, cut = (draft_step(each, items, vocabulary_size=4) for each in (logits, logits[:, :4].contiguous()))
    assert padded == cut
    assert max(token.token_id for token in padded) <= 3
    tokens = [token.token_id for token in cut]
    scores = (score_tokens(each, items, tokens, vocabulary_size=4) for each in (logits, logits[:, :4].contiguous()))
    assert next(scores) == next(scores)


def test_penalties_and_bias_reach_the_draft() -> None:
    sampling = Sampling(temperature=0, frequency_penalty=0.5)
    logits = torch.tensor([[1.0, 0.9]])
    assert draft_step(logits, [ask(sampling)], vocabulary_size=2)[0].token_id == 0
    assert draft_step(logits, [ask(sampling, counts={0: 1})], vocabulary_size=2)[0].token_id == 1


def test_scores_are_ln_of_the_row_as_it_would_have_been_sent() -> None:
    logits = random_logits(4, 1, 30).expand(30, -1)
    items = [ask(max_row=5)] * 30
    scores = score_tokens(logits, items, list(range(30)), vocabulary_size=30)
    row = entries(draft_step(logits[:1], items[:1], vocabulary_size=30)[0])
    for token, (score, guessed) in enumerate(scores):
        assert not guessed
        assert score == (-inf if token not in row else pytest.approx(log(row[token] / ROW_TOTAL), abs=1e-5))
    assert sum(exp(score) for score, _ in scores) == pytest.approx(1, abs=1e-5)


def test_scores_of_deterministic_drafts_say_what_they_would_have_guessed() -> None:
    logits = random_logits(6, 1, 30).expand(30, -1)
    tokens = list(range(30))
    for rule, sampling in ((Rule.COUPLED, PLAIN), (Rule.BLOCK, Sampling(temperature=0))):
        item = ask(sampling, rule)
        guess = draft_step(logits[:1], [item], vocabulary_size=30)[0].token_id
        scores = score_tokens(logits, [item] * 30, tokens, vocabulary_size=30)
        assert [guessed for _, guessed in scores] == [token == guess for token in tokens]
        if sampling.greedy:
            assert [score for score, _ in scores] == [0.0 if token == guess else -inf for token in tokens]


def test_scores_from_logits_that_are_not_finite_are_none() -> None:
    logits = torch.tensor([[torch.nan, 0.0]])
    assert score_tokens(logits, [ask(rule=Rule.COUPLED)], [1], vocabulary_size=2) == [(-inf, False)]


def sparse(ids: Sequence[int], probs: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(ids, dtype=np.uint32), np.array(probs)


def test_an_explicit_distribution_goes_the_same_way() -> None:
    distributions = [sparse([2, 5, 7, 9], [0.5, 0.3, 0.0, 0.2]), sparse([1], [1.0])]
    items = [ask(Sampling(temperature=0.5), max_row=2), ask()]
    first, second = sample_sparse(distributions, items)
    assert list(entries(first)) == [2, 5]
    assert entries(first)[2] / ROW_TOTAL == pytest.approx(0.25 / 0.34, abs=1e-6)
    assert (second.token_id, entries(second)) == (1, {1: ROW_TOTAL})
    assert score_sparse(distributions, items, [9, 1])[0][0] == -inf
    greedy = sample_sparse(distributions[:1], [ask(Sampling(temperature=0))])[0]
    assert (greedy.token_id, greedy.row) == (2, None)


def test_wrong_shapes_are_errors() -> None:
    assert draft_step(torch.zeros(0, 3), [], vocabulary_size=3) == []
    assert score_tokens(torch.zeros(0, 3), [], [], vocabulary_size=3) == []
    with pytest.raises(ValueError, match="2 rows of logits for 1 sessions"):
        draft_step(torch.zeros(2, 3), [ask()], vocabulary_size=3)
    with pytest.raises(ValueError, match="token map of 2 ids"):
        draft_step(torch.zeros(1, 3), [ask()], vocabulary_size=3, token_map=torch.tensor([1, 2]))

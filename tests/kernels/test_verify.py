"""`verify` on small cases, reference and kernel alike: what a step may and may not do."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from compiled_verify import ALIKE, compiled_verify
from torch import Tensor
from verify_blocks import RULES, block, log_rows, row_of

from specmesh.kernels.inputs import VerifyInput, VerifyOutcome
from specmesh.kernels.reference.philox import key_tensor, philox, uniform_from_words
from specmesh.runtime.contract import ROW_TOTAL, Purpose
from specmesh.runtime.rows import check_block, encode_row
from specmesh.runtime.types import BlockRefusal, Rule, Sampling

verify = ALIKE.verify


def verify_one(logits: Tensor, item: VerifyInput, num_top: int | None = None) -> VerifyOutcome:
    return verify(logits, [item], vocabulary_size=logits.shape[1], num_top=[num_top])[0]


@pytest.mark.parametrize("rule", RULES)
def test_samplings_of_a_batch_keep_apart(rule: Rule) -> None:
    """C1: each by its own law, which the log-probabilities of the drawn tokens show."""
    row = torch.tensor([2.0, 1.0, 0.0, -1.0])
    samplings = [Sampling(temperature=0.5), Sampling(temperature=0.5, top_k=2), Sampling(temperature=1.7)]
    laws = [[0.865, 0.117, 0.016, 0.002], [0.881, 0.119, 0, 0], torch.softmax(row / 1.7, dim=0).tolist()]
    items = [block(sampling=samplings[key % 3], rule=rule, key=key) for key in range(12)]
    ALIKE.sessions = len(items)
    outcomes = verify(row.repeat(12, 1), items, vocabulary_size=4, num_top=[0] * 12)
    assert any(outcome.next_token for outcome in outcomes)
    for key, outcome in enumerate(outcomes):
        assert np.exp(outcome.logprobs[0].logprob) == pytest.approx(laws[key % 3][outcome.next_token], abs=6e-4)


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.COUPLED])
@pytest.mark.parametrize(
    ("probs", "top_p", "law"),
    [
        ([0.3, 0.1, 0.1, 0.5], 0.79, {0: 0.375, 3: 0.625}),
        ([0.25] * 4, 0.5, {0: 0.5, 1: 0.5}),
        ([0.3, 0.1, 0.1, 0.5], 1e-6, {3: 1.0}),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(
    rule: Rule, probs: list[float], top_p: float, law: dict[int, float]
) -> None:
    """C8."""
    items = [block(sampling=Sampling(top_p=top_p), rule=rule, key=key) for key in range(8)]
    ALIKE.sessions = len(items)
    outcomes = verify(log_rows(probs).repeat(8, 1), items, vocabulary_size=4, num_top=[0] * 8)
    assert {outcome.next_token for outcome in outcomes} == set(law)
    for outcome in outcomes:
        assert np.exp(outcome.logprobs[0].logprob) == pytest.approx(law[outcome.next_token], abs=1e-5)


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_temperature_is_in_what_is_accepted(rule: Rule) -> None:
    """C1: T(0) = .865 at 0.5 and .644 at 1; uniforms between the two tell which it was."""
    keys = range(200)
    uniforms = uniform_from_words(philox(key_tensor(keys), (3, 0, int(Purpose.ACCEPT), 0))[0]).tolist()
    between = [key for key in keys if 0.66 < uniforms[key] < 0.85][:2]
    items = [block([0], sampling=Sampling(temperature=0.5), rule=rule, key=key) for key in between]
    outcomes = verify(torch.tensor([2.0, 1.0, 0.0, -1.0]).repeat(4, 1), items, vocabulary_size=4)
    assert [outcome.num_accepted for outcome in outcomes] == [1, 1]


def test_a_token_outside_its_own_row_is_a_bad_block() -> None:
    """C5: T = 1e-6 where D = 0: the check before the kernel refuses it, wherever the draw falls; nor is it kept."""
    row = row_of(0.5, 0.0, 0.5)
    for rule in (Rule.BLOCK, Rule.TOKEN):
        outcome = verify_one(log_rows(*[[0.5, 1e-6, 0.499999]] * 2), block([1], [row], rule=rule))
        assert outcome.num_accepted == 0
    refused = {
        check_block([1], [encode_row(*row)], vocabulary_size=3, draft_key=key, block_start=3)[0] for key in range(20)
    }
    assert refused == {BlockRefusal.TOKEN_OUT_OF_ROW}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fault", [torch.nan, torch.inf])
def test_a_faulty_row_ends_its_session_and_no_other(rule: Rule, fault: float) -> None:
    """C6: one target row that is not finite in a batch of three."""
    logits = log_rows(*[[0.25, 0.5, 0.25]] * 6)
    items = [block([1], rule=rule, key=key) for key in range(3)]
    clean = verify(logits, items, vocabulary_size=3)
    faulty = logits.clone()
    faulty[2] = fault
    outcomes = verify(faulty, items, vocabulary_size=3)
    assert [outcome.finite for outcome in outcomes] == [True, False, True]
    assert outcomes[::2] == clean[::2]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_faulty_row_matters_only_to_a_step_that_gets_there(rule: Rule, temperature: float) -> None:
    """C6: what a draft made up cannot fail a session that plain decoding would not."""
    logits = log_rows(*[[0.0, 1.0, 0.0]] * 4)
    logits[2, 0] = torch.nan
    sampling = Sampling(temperature=temperature)
    wrong = verify_one(logits, block([0, 1, 1], sampling=sampling, rule=rule))
    assert (wrong.finite, wrong.num_accepted, wrong.next_token) == (True, 0, 1)
    reached = verify_one(logits, block([1, 1, 1], sampling=sampling, rule=rule))
    assert not reached.finite


@pytest.mark.parametrize("rule", RULES)
def test_a_block_in_a_wider_batch_keeps_to_its_own_length(rule: Rule) -> None:
    """C7: a block of 3 beside one of 5: at most 3 accepted, and the bonus from row 3."""
    sure = [torch.nn.functional.one_hot(torch.tensor(token), 4).double().tolist() for token in (1, 0, 1, 3)]
    logits = log_rows(*sure, *[[0.25] * 4] * 6)
    inputs = [block([1, 0, 1], rule=rule), block([0, 0, 0, 0, 0], rule=rule)]
    outcome = verify(logits, inputs, vocabulary_size=4)[0]
    assert (outcome.num_accepted, outcome.next_token) == (3, 3)


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_is_counted_by_the_penalties_of_the_rows_after_it(rule: Rule) -> None:
    """C12: frequency penalty .5, temperature 0, logits [1.0, .9] on every row, draft [0, 0]: output [0, 1]."""
    sampling = Sampling(temperature=0, frequency_penalty=0.5)
    outcome = verify_one(torch.tensor([[1.0, 0.9]] * 3), block([0, 0], sampling=sampling, rule=rule, counts={}))
    assert (outcome.num_accepted, outcome.next_token) == (1, 1)


@pytest.mark.parametrize("rule", RULES)
def test_accepted_tokens_carry_their_target_log_probability(rule: Rule) -> None:
    """C13: [.7, .2, .1], draft 0 accepted: -0.3567; the same numbers with block length 0 and 4."""
    logits = log_rows(*[[0.7, 0.2, 0.1]] * 5)
    outcomes = {length: [] for length in (0, 4)}  # type: dict[int, list[VerifyOutcome]]
    for key in range(40):
        for length, found in outcomes.items():
            found.append(verify_one(logits[: length + 1], block([0] * length, rule=rule, key=key), num_top=2))
    assert any(outcome.num_accepted > 0 for outcome in outcomes[4])
    expected = {0: -0.3567, 1: -1.6094, 2: -2.3026}
    for length, found in outcomes.items():
        for outcome in found:
            emitted = [0] * outcome.num_accepted + [outcome.next_token]
            assert [x.logprob for x in outcome.logprobs] == pytest.approx([expected[t] for t in emitted], abs=1e-4)
            assert [token for token, _ in outcome.logprobs[0].top] == [0, 1], length


def test_log_probabilities_at_temperature_0_are_those_of_temperature_1() -> None:
    outcome = verify_one(log_rows([0.7, 0.2, 0.1]), block(sampling=Sampling(temperature=0)), num_top=3)
    assert outcome.next_token == 0
    assert outcome.logprobs[0].logprob == pytest.approx(-0.3567, abs=1e-4)
    assert [token for token, _ in outcome.logprobs[0].top] == [0, 1, 2]


def test_log_probabilities_leave_out_what_the_law_does() -> None:
    outcome = verify_one(log_rows([0.6, 0.2, 0.2]), block(sampling=Sampling(top_k=1)), num_top=3)
    assert outcome.logprobs[0].logprob == 0
    assert outcome.logprobs[0].top == ((0, 0.0),)


@pytest.mark.parametrize("rule", RULES)
def test_a_rejected_draft_leaves_nothing_behind(rule: Rule) -> None:
    """C16: one draft per step, rows one-hot on 1 then 2, draft 0: emit [1], and the next step starts from row 1."""
    first = verify_one(log_rows([0, 1.0, 0], [0, 0, 1.0]), block([0], rule=rule, start=3))
    assert (first.num_accepted, first.next_token) == (0, 1)
    second = verify_one(log_rows([0, 0, 1.0]), block(rule=rule, start=4))
    assert (second.num_accepted, second.next_token) == (0, 2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [1e-40, 1e-300])
def test_a_temperature_next_to_nothing_is_the_arg_max(rule: Rule, temperature: float) -> None:
    """C17."""
    sampling = Sampling(temperature=temperature)
    for key in range(20):
        outcome = verify_one(
            torch.tensor([[1.0, 3.0, 2.999]] * 3), block([1, 0], sampling=sampling, rule=rule, key=key)
        )
        assert (outcome.num_accepted, outcome.next_token) == (1, 1)


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1])
def test_every_64_bit_key_is_as_good_and_repeatable(key: int) -> None:
    """C17: seed 0 and 2^64 - 1 are reproducible."""
    logits = torch.randn((1, 50), generator=torch.Generator().manual_seed(1))
    tokens = [verify_one(logits, block(rule=Rule.COUPLED, key=key, start=start)).next_token for start in range(60)]
    again = [verify_one(logits, block(rule=Rule.COUPLED, key=key, start=start)).next_token for start in range(60)]
    assert tokens == again
    assert len(set(tokens)) > 10


@pytest.mark.parametrize("verify", [ALIKE.verify, compiled_verify], ids=["reference", "kernel"])
def test_an_empty_batch_has_no_outcomes_and_wrong_shapes_are_errors(verify: Callable[..., object]) -> None:
    assert verify(torch.zeros(0, 3), [], vocabulary_size=3) == []
    with pytest.raises(ValueError, match="2 rows of logits for 0 drafts of 1 sessions"):
        verify(torch.zeros(2, 3), [block()], vocabulary_size=3)
    with pytest.raises(ValueError, match="one per drafted token"):
        verify(torch.zeros(3, 3), [block([0, 1], [row_of(1.0)])], vocabulary_size=3)
    with pytest.raises(ValueError, match="token_counts"):
        verify(torch.zeros(1, 3), [block(sampling=Sampling(presence_penalty=1.0))], vocabulary_size=3)


def test_numbers_of_a_block_are_keyed_by_where_it_starts() -> None:
    """C18: the same position met in another block has other numbers, as in the reference."""
    ALIKE.left = 3
    draft = (
        np.arange(3, dtype=np.uint32),
        np.array([ROW_TOTAL - 2 * 5_000_000, 5_000_000, 5_000_000], dtype=np.uint32),
    )
    logits = torch.tensor([0.2, 0.5, 0.3]).log().repeat(8, 1)
    seen = []
    for start in (20, 21, 22):
        items = [VerifyInput(start, [0, 1, 2], [draft] * 3, Sampling(), Rule.BLOCK, key) for key in (7, 8)]
        seen.append(ALIKE.verify(logits, items, vocabulary_size=3))
    assert seen[0] != seen[1] or seen[1] != seen[2]

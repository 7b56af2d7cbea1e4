"""`verify` on small cases, reference and kernel alike: laws over many draws, and what a step may and may not do."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from compiled_verify import ALIKE
from torch import Tensor

from specmesh.kernels.inputs import DraftInput, VerifyInput, VerifyOutcome
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import RowArrays, check_block, decode_row, encode_row
from specmesh.runtime.types import BlockRefusal, Rule, Sampling

DRAWS = 10_000
RULES = [Rule.BLOCK, Rule.TOKEN, Rule.COUPLED]
PLAIN = Sampling()
verify, draft_step = ALIKE.verify, ALIKE.draft_step


def log_rows(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows).log()


def block(
    tokens: Sequence[int] = (),
    rows: Sequence[RowArrays] = (),
    *,
    sampling: Sampling = PLAIN,
    rule: Rule = Rule.BLOCK,
    key: int = 1,
    start: int = 3,
    counts: Mapping[int, int] | None = None,
) -> VerifyInput:
    return VerifyInput(start, tokens, rows, sampling, rule, key, counts)


def verify_one(logits: Tensor, item: VerifyInput, num_top: int | None = None) -> VerifyOutcome:
    return verify(logits, [item], vocabulary_size=logits.shape[1], num_top=[num_top])[0]


def many(logits: Tensor, make: Callable[[int], VerifyInput], draws: int = DRAWS) -> list[VerifyOutcome]:
    """The same block with `draws` different keys, in one batch."""
    return verify(logits.repeat(draws, 1), [make(key) for key in range(draws)], vocabulary_size=logits.shape[1])


def first_tokens(outcomes: Sequence[VerifyOutcome], items: Callable[[int], VerifyInput], size: int) -> list[float]:
    """Shares of the first emitted token."""
    firsts = [
        items(key).draft_token_ids[0] if outcome.num_accepted else outcome.next_token
        for key, outcome in enumerate(outcomes)
    ]
    return (np.bincount(firsts, minlength=size) / len(firsts)).tolist()  # type: ignore[no-any-return]


def close_to(law: Sequence[float], draws: int = DRAWS) -> object:
    """Five standard deviations of the widest share."""
    return pytest.approx(law, abs=2.5 / draws**0.5)


def row_of(*weights: float) -> RowArrays:
    """A row over ids 0.. from shares that are multiples of 2^-24 nearly enough."""
    exact = [round(weight * ROW_TOTAL) for weight in weights]
    exact[0] += ROW_TOTAL - sum(exact)
    kept = [i for i, weight in enumerate(exact) if weight]
    return np.array(kept, dtype=np.uint32), np.array([exact[i] for i in kept], dtype=np.uint32)


def drafted(probs: Sequence[float], sampling: Sampling, max_row: int = 128) -> list[tuple[int, RowArrays]]:
    """What an honest draft with these probabilities proposes at position 3, for keys 0, 1, ..."""
    items = [DraftInput(3, 0, sampling, Rule.BLOCK, key, None, max_row, 0.995) for key in range(DRAWS)]
    tokens = draft_step(log_rows(probs).expand(DRAWS, -1), items, vocabulary_size=len(probs))
    return [(token.token_id, decode_row(token.row)) for token in tokens if token.row is not None]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("options", "law"),
    [
        ({"temperature": 0.5}, [0.865, 0.117, 0.016, 0.002]),
        ({"temperature": 0.5, "top_k": 2}, [0.881, 0.119, 0, 0]),
        ({"temperature": 1.7}, [0.4988, 0.2770, 0.1538, 0.0854]),
    ],
)
def test_the_law_survives_a_one_hot_draft(rule: Rule, options: dict[str, float], law: list[float]) -> None:
    """C1: target logits [2, 1, 0, -1], draft one-hot on 0."""
    sampling = Sampling(**options)  # type: ignore[arg-type]

    def make(key: int) -> VerifyInput:
        return block([0], sampling=sampling, rule=rule, key=key)

    outcomes = many(torch.tensor([2.0, 1.0, 0.0, -1.0]).repeat(2, 1), make)
    assert first_tokens(outcomes, make, 4) == close_to(law)


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_recovered_tokens_come_from_the_residual(rule: Rule) -> None:
    """C3: T = [.5, .3, .2], D = [.2, .5, .3]: every rejection emits 0; law T, acceptance .70."""
    law = [0.5, 0.3, 0.2]
    row = row_of(0.2, 0.5, 0.3)
    tokens = np.random.default_rng(3).choice(3, size=DRAWS, p=[0.2, 0.5, 0.3]).tolist()

    def make(key: int) -> VerifyInput:
        return block([tokens[key]], [row], rule=rule, key=key)

    outcomes = many(log_rows(law, law), make)
    assert all(outcome.next_token == 0 for outcome in outcomes if not outcome.num_accepted)
    assert sum(outcome.num_accepted for outcome in outcomes) / DRAWS == pytest.approx(0.7, abs=0.025)
    assert first_tokens(outcomes, make, 3) == close_to(law)


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_the_residual_is_drawn_with_a_number_of_its_own(rule: Rule) -> None:
    """C4: T = [.2, .4, .4], D one-hot on 0: law T; one uniform for both draws gives [.2, .3, .5]."""
    law = [0.2, 0.4, 0.4]

    def make(key: int) -> VerifyInput:
        return block([0], rule=rule, key=key)

    assert first_tokens(many(log_rows(law, law), make), make, 3) == close_to(law)


def test_a_token_outside_its_own_row_is_a_bad_block() -> None:
    """C5: T = 1e-6 where D = 0: the check before the kernel refuses it, wherever the draw falls."""
    row = row_of(0.5, 0.0, 0.5)
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
def test_no_id_outside_the_vocabulary_is_ever_drawn(rule: Rule) -> None:
    """C6 and C14: real vocabulary 4, head 6 wide, [1, 2, 3, 0, 9, 9]: ids 4 and 5 never."""
    wide = torch.tensor([1.0, 2.0, 3.0, 0.0, 9.0, 9.0])

    def make(key: int) -> VerifyInput:
        return block([2], rule=rule, key=key)

    outcomes = verify(wide.repeat(2 * DRAWS, 1), [make(key) for key in range(DRAWS)], vocabulary_size=4)
    assert max(outcome.next_token for outcome in outcomes) <= 3
    assert first_tokens(outcomes, make, 4) == close_to([0.087, 0.237, 0.644, 0.032])


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


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_a_draft_with_top_k_sends_the_row_it_sampled_from(rule: Rule) -> None:
    """C2: draft [.5, .3, .2] with top-k 1 proposes 0 always; the row must be one-hot; the fault gives [.8, .1, .1]."""
    law = [0.40, 0.35, 0.25]
    proposals = drafted([0.5, 0.3, 0.2], Sampling(top_k=1))
    assert all((t, row[0].tolist(), row[1].tolist()) == (0, [0], [ROW_TOTAL]) for t, row in proposals)

    def make(key: int) -> VerifyInput:
        return block([proposals[key][0]], [proposals[key][1]], rule=rule, key=key)

    assert first_tokens(many(log_rows(law, law), make), make, 3) == close_to(law)


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_rows_of_a_truncated_draft_are_renormalised(rule: Rule) -> None:
    """C19: want [.4, .3, .2, .1]; rows sent without renormalising give [.57, .43, 0, 0]."""
    law = [0.4, 0.3, 0.2, 0.1]
    proposals = drafted(law, PLAIN, max_row=2)
    assert all(row[1].sum() == ROW_TOTAL for _, row in proposals)

    def make(key: int) -> VerifyInput:
        return block([proposals[key][0]], [proposals[key][1]], rule=rule, key=key + 10**6)

    assert first_tokens(many(log_rows(law, law), make), make, 4) == close_to(law)


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_a_greedy_draft_against_a_sampling_target_is_one_hot(rule: Rule) -> None:
    """C20: a draft at temperature 0, target at temperature 1: without the one-hot row the arg-max comes out always."""
    law = [0.2, 0.19, 0.19, 0.18, 0.24]
    item = DraftInput(3, 0, Sampling(temperature=0), rule, 1, None, 128, 0.995)
    token = draft_step(log_rows([0.3, 0.2, 0.2, 0.2, 0.1]), [item], vocabulary_size=5)[0]
    assert (token.token_id, token.row) == (0, None)

    def make(key: int) -> VerifyInput:
        return block([token.token_id], rule=rule, key=key)

    assert first_tokens(many(log_rows(law, law), make), make, 5) == close_to(law)


def test_an_empty_batch_has_no_outcomes_and_wrong_shapes_are_errors() -> None:
    assert verify(torch.zeros(0, 3), [], vocabulary_size=3) == []
    with pytest.raises(ValueError, match="2 rows of logits for 0 drafts of 1 sessions"):
        verify(torch.zeros(2, 3), [block()], vocabulary_size=3)
    with pytest.raises(ValueError, match="one per drafted token"):
        verify(torch.zeros(3, 3), [block([0, 1], [row_of(1.0)])], vocabulary_size=3)
    with pytest.raises(ValueError, match="token_counts"):
        verify(torch.zeros(1, 3), [block(sampling=Sampling(presence_penalty=1.0))], vocabulary_size=3)

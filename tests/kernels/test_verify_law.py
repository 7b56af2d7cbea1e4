"""Whatever is drafted, the law of what `verify` emits is the target's: over many draws, reference and kernel alike."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from compiled_verify import ALIKE
from torch import Tensor
from verify_blocks import PLAIN, RULES, block, log_rows, row_of

from specmesh.kernels.inputs import DraftInput, VerifyInput, VerifyOutcome
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import RowArrays, decode_row
from specmesh.runtime.types import Rule, Sampling

DRAWS = 10_000
verify, draft_step = ALIKE.verify, ALIKE.draft_step


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


@pytest.mark.parametrize("rule", RULES)
def test_no_id_outside_the_vocabulary_is_ever_drawn(rule: Rule) -> None:
    """C6 and C14: real vocabulary 4, head 6 wide, [1, 2, 3, 0, 9, 9]: ids 4 and 5 never."""
    wide = torch.tensor([1.0, 2.0, 3.0, 0.0, 9.0, 9.0])

    def make(key: int) -> VerifyInput:
        return block([2], rule=rule, key=key)

    outcomes = verify(wide.repeat(2 * DRAWS, 1), [make(key) for key in range(DRAWS)], vocabulary_size=4)
    assert max(outcome.next_token for outcome in outcomes) <= 3
    assert first_tokens(outcomes, make, 4) == close_to([0.087, 0.237, 0.644, 0.032])


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

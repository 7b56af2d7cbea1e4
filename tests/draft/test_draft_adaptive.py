"""Kind `table` with the session's own past: what it says, that its rows are honest, and that its memory is soft."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from draft_peers import ask_for, assert_honest, draft_peer, random_law

from specmesh.draft.adaptive import AdaptiveTableDrafter, ContextMixture
from specmesh.draft.admission import EngineLimits
from specmesh.draft.drafter import make_drafter
from specmesh.draft.lookup import MatchIndex
from specmesh.draft.ngram_file import NgramTable, law_to_levels, load_table, save_table
from specmesh.draft.sparse_law import SparseRow, coupled_guess, shape
from specmesh.draft.table import TableDrafter
from specmesh.kernels.ops import sample_sparse, score_sparse
from specmesh.runtime.config import ConfigError
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.errors import InvalidValue
from specmesh.runtime.rows import decode_row
from specmesh.runtime.types import Rule, Sampling

SIZE = 6
LAW = random_law(SIZE, seed=21)
WEIGHTS = (2.0, 0.5, 0.25)
TABLE = NgramTable(law_to_levels(LAW), SIZE, digest="d" * 64, context_weights=WEIGHTS)
TEXT = random.Random(3).choices(range(SIZE), k=60)


def drafter(table: NgramTable = TABLE) -> AdaptiveTableDrafter:
    static = TableDrafter(table, max_context_tokens=1024, max_kept_rows=64)
    return AdaptiveTableDrafter(table, table.context_weights, static.info)


def law_by_definition(context: Sequence[int], table: NgramTable = TABLE) -> np.ndarray:
    """P_m = (c + a_m P_{m-1}) / (n + a_m), counted over the whole context."""
    law = np.zeros(table.vocabulary_size)
    found = table.find(context[-5:])
    assert found is not None
    ids, probs = found[0].distribution(found[1])
    law[ids] = probs
    for length, weight in enumerate(table.context_weights, start=1):
        end = list(context[-length:])
        counts = np.zeros(table.vocabulary_size)
        for at in range(length, len(context)):
            if list(context[at - length : at]) == end:
                counts[context[at]] += 1
        law = (counts + weight * law) / (counts.sum() + weight)
    return law


def test_the_law_is_the_recursion_over_all_matches() -> None:
    mixture = ContextMixture(TABLE, WEIGHTS)
    index = MatchIndex(mixture.settings)
    for length, token in enumerate(TEXT):
        index.push(token)
        law = mixture.law(index)
        given = np.array([law.get(token_id, 0.0) for token_id in range(SIZE)])
        np.testing.assert_allclose(given, law_by_definition(TEXT[: length + 1]), atol=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
async def test_rows_are_honest_and_those_of_the_law(temperature: float) -> None:
    """Every token derives from its row; the row is the law at the temperature, drafted tokens part of the context."""
    sampling = Sampling(temperature=temperature)
    async with draft_peer(drafter(), limits=EngineLimits(row_mass=1.0)) as peer:
        for end in (30, 40, 50):
            ask = ask_for(TEXT[:end], 30 if end == 30 else 10, 4, sampling=sampling)
            answer = await peer.talk.ask(ask)
            assert_honest(answer, ask, SIZE)
            for offset, row in enumerate(answer.rows):
                ids, weights = decode_row(row)
                want = law_by_definition(TEXT[:end] + answer.token_ids[:offset]) ** (1 / temperature)
                given = np.zeros(SIZE)
                given[ids] = weights / ROW_TOTAL
                np.testing.assert_allclose(given, want / want.sum(), atol=1e-6)


async def test_the_table_speaks_where_nothing_recurs_and_the_past_where_it_does() -> None:
    chain = np.zeros((SIZE, SIZE, SIZE))
    for token in range(SIZE):
        chain[:, token, (token + 1) % SIZE] = 1
    table = NgramTable(law_to_levels(chain), SIZE, digest="c" * 64, context_weights=(0.5, 0.2, 0.1))
    greedy = Sampling(temperature=0)
    async with draft_peer(drafter(table)) as peer:
        assert (await peer.talk.ask(ask_for([2], 1, 3, sampling=greedy))).token_ids == [3, 4, 5]
        past = [0, 5, 3, 0, 5, 3, 0]
        assert (await peer.talk.ask(ask_for(past, 7, 4, session_id=2, sampling=greedy))).token_ids == [5, 3, 0, 5]


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
async def test_scores_are_those_of_what_it_would_have_sent(rule: Rule, temperature: float) -> None:
    sampling = Sampling(temperature=temperature)
    deterministic = rule is Rule.COUPLED or temperature == 0
    async with draft_peer(drafter()) as peer:
        await peer.talk.ask(ask_for(TEXT[:20], 20, 0, sampling=sampling, rule=rule))
        scored = await peer.talk.ask(ask_for(TEXT[:26], 6, 0, sampling=sampling, rule=rule, want_scores=True))
        assert scored.end is not None
        for place, token in enumerate(TEXT[20:26]):
            fresh = await peer.talk.ask(
                ask_for(TEXT[: 20 + place], 20 + place, 1, session_id=100 + place, sampling=sampling, rule=rule)
            )
            score = scored.end.delta_logprobs[place]
            if deterministic:
                guessed = fresh.token_ids[0] == token
                if rule is Rule.COUPLED:
                    assert scored.end.delta_guessed[place] == guessed
                if temperature == 0:
                    assert score == (0.0 if guessed else -math.inf)
            else:
                ids, weights = decode_row(fresh.rows[0])
                wanted = math.log(weights[ids == token][0] / ROW_TOTAL) if token in ids else -math.inf
                assert score == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7, top_k=2),
        Sampling(top_p=0.6),
        Sampling(repetition_penalty=1.5, frequency_penalty=0.4),
        Sampling(temperature=1.4, logit_bias=((2, 3.0),)),
        Sampling(temperature=0.0, presence_penalty=4.0),
    ],
    ids=str,
)
async def test_what_else_a_request_asks_for_is_in_the_row(sampling: Sampling) -> None:
    """Truncation, penalties and bias go through the kernels: rows stay honest and follow their transform."""
    async with draft_peer(drafter()) as peer:
        ask = ask_for(TEXT[:30], 30, 4, sampling=sampling)
        answer = await peer.talk.ask(ask)
        assert_honest(answer, ask, SIZE)
        assert len(answer.token_ids) == 4
        if sampling.top_k:
            assert all(len(decode_row(row)[0]) == sampling.top_k for row in answer.rows)
        scored = await peer.talk.ask(ask_for(TEXT[:30] + answer.token_ids, 4, 0, sampling=sampling, want_scores=True))
        assert scored.end is not None
        wanted = [0.0] * 4 if sampling.greedy else answer.logprobs
        assert list(scored.end.delta_logprobs) == pytest.approx(wanted, rel=1e-5)


async def test_a_session_sent_elsewhere_at_every_step_gets_the_same_blocks() -> None:
    """Soft state: what a replica that has followed says, one that meets the context for the first time says too."""
    async with draft_peer(drafter()) as one:
        for end in range(10, 40, 3):
            warm = await one.talk.ask(ask_for(TEXT[:end], 10 if end == 10 else 3, 4))
            async with draft_peer(drafter()) as other:
                cold = await other.talk.ask(ask_for(TEXT[:end], end, 4))
            assert (warm.token_ids, warm.rows) == (cold.token_ids, cold.rows)


async def test_rejected_tokens_are_forgotten() -> None:
    async with draft_peer(drafter()) as peer:
        await peer.talk.ask(ask_for(TEXT[:20], 20, 6))
        again = await peer.talk.ask(ask_for(TEXT[:21], 1, 4))
        fresh = await peer.talk.ask(ask_for(TEXT[:21], 21, 4, session_id=2))
        assert (again.token_ids, again.rows) == (fresh.token_ids, fresh.rows)


def test_rows_in_python_equal_the_kernels_up_to_rounding() -> None:
    """The short way in Python and the kernels' transform are the same law, row and guess."""
    source = random.Random(5)
    from specmesh.draft.drafter import Turn
    from specmesh.draft.kernel_input import draft_input
    from specmesh.runtime.types import DraftAsk

    for case in range(240):
        ids = sorted(source.sample(range(500), source.randint(1, 12)))
        law = {token: source.random() ** 3 + 1e-4 for token in ids}
        sampling = Sampling(
            temperature=source.choice([0.5, 1.0, 1.7]),
            top_k=source.choice([0, 0, 1, 5]),
            top_p=source.choice([1.0, 0.4, 0.9]),
            min_p=source.choice([0.0, 0.0, 0.1]),
        )
        max_row, rule = source.choice([3, 128]), source.choice([Rule.BLOCK, Rule.COUPLED])
        ask = DraftAsk(1, 9, 0, (), 4, sampling, rule, case)
        item = draft_input(Turn(1, [1] * 9, 9, ask, max_row, 0.995, None, None, 1), 0, None)
        columns = np.array(ids), np.array([law[token] for token in ids])
        token = sample_sparse([columns], [item])[0]
        shaped = shape(law, sampling)
        if rule is Rule.COUPLED:
            assert coupled_guess(shaped, key=case, position=9) == token.token_id
            continue
        row = SparseRow(shaped, max_row=max_row, row_mass=0.995)
        assert token.row is not None
        kernel_ids, kernel_weights = decode_row(token.row)
        assert row.ids == kernel_ids.tolist()
        np.testing.assert_allclose(row.weights, kernel_weights, rtol=1e-4, atol=8)
        for scored in ids:
            (kernel_score, _), ours = score_sparse([columns], [item], [scored])[0], row.logprob(scored)
            assert ours == pytest.approx(kernel_score, rel=1e-3)


def test_equals_are_kept_lower_id_first_and_what_cold_leaves_nothing_of_is_left_out() -> None:
    equal = {9: 0.25, 4: 0.25, 6: 0.25, 2: 0.25}
    assert set(shape(equal, Sampling(top_k=2))) == {2, 4}
    assert set(shape(equal, Sampling(top_p=0.5))) == {2, 4}
    assert shape({3: 0.9, 5: 0.1}, Sampling(temperature=1e-4)) == {3: 1.0}


def test_a_row_sums_to_all_and_covers_every_draw() -> None:
    row = SparseRow({7: 1e-9, 3: 1.0, 5: 1e-12}, max_row=8, row_mass=1.0)
    assert sum(row.weights) == ROW_TOTAL
    assert min(row.weights) == 1
    assert [row.ids[row.draw(number)] for number in (0, ROW_TOTAL - 1)] == [3, 7]
    with pytest.raises(ValueError, match="a draw must lie in"):
        row.draw(ROW_TOTAL)


def test_the_file_decides_and_a_setting_can_switch_it_off(tmp_path: Path) -> None:
    save_table(tmp_path / "with.npz", TABLE)
    save_table(tmp_path / "without.npz", NgramTable(law_to_levels(LAW), SIZE))
    assert load_table(tmp_path / "with.npz").context_weights == WEIGHTS
    kinds = {
        (name, context): make_drafter(
            "table", {"path": tmp_path / name} | ({} if context is None else {"context": context})
        )
        for name, context in [("with.npz", None), ("with.npz", False), ("with.npz", True), ("without.npz", None)]
    }
    assert [isinstance(each, AdaptiveTableDrafter) for each in kinds.values()] == [True, False, True, False]
    digests = {each.info.model_digest for each in kinds.values()}
    assert len(digests) == 3
    with pytest.raises(ConfigError, match=r"drafter\.context: .*without\.npz has no context_weights"):
        make_drafter("table", {"path": tmp_path / "without.npz", "context": True})


@pytest.mark.parametrize("weights", [[0.0], [-1.0], [math.nan], [math.inf], [1.0] * 65, [[1.0]]])
def test_weights_that_are_none_are_refused(tmp_path: Path, weights: list[float]) -> None:
    save_table(tmp_path / "good.npz", TABLE)
    with np.load(tmp_path / "good.npz") as arrays:
        parts = dict(arrays)
    np.savez(tmp_path / "bad.npz", **(parts | {"context_weights": np.array(weights)}))
    with pytest.raises(InvalidValue) as refused:
        load_table(tmp_path / "bad.npz")
    assert refused.value.field == "context_weights"

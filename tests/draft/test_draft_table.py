"""Kind `table` through the running service: rows, tokens, scores."""

import math
from pathlib import Path

import numpy as np
import pytest
from draft_peers import KEY, WHOLE_ROWS, ask_for, assert_honest, draft_peer, law_drafter, random_law, table_drafter

from specmesh.draft.admission import EngineLimits
from specmesh.draft.drafter import make_drafter
from specmesh.draft.ngram_file import Level, NgramTable, law_to_levels, load_table, save_table
from specmesh.draft.table import TableDrafter
from specmesh.kernels.inputs import DraftInput
from specmesh.kernels.ops import sample_sparse
from specmesh.runtime.config import ConfigError
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.errors import InvalidValue
from specmesh.runtime.rows import decode_row
from specmesh.runtime.types import Rule, Sampling

LAW = random_law(5, seed=11)


def dense(row: bytes, size: int) -> np.ndarray:
    ids, weights = decode_row(row)
    full = np.zeros(size)
    full[ids] = weights / ROW_TOTAL
    return full


async def test_a_block_has_the_rows_of_the_law_and_its_tokens_derive_from_them() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        context = [3, 1, 4]
        for step in range(40):
            ask = ask_for(context, 3 if step == 0 else 4)
            answer = await peer.talk.ask(ask)
            assert answer.reason == "LENGTH"
            assert_honest(answer, ask, 5)
            for offset, row in enumerate(answer.rows):
                before = (context + answer.token_ids[:offset])[-2:]
                np.testing.assert_allclose(dense(row, 5), LAW[tuple(before)], atol=1e-6)
                assert math.exp(answer.logprobs[offset]) == pytest.approx(
                    dense(row, 5)[answer.token_ids[offset]], rel=1e-6
                )
            context += answer.token_ids


@pytest.mark.parametrize("temperature", [0.5, 1.7])
async def test_temperature_is_in_the_row(temperature: float) -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        answer = await peer.talk.ask(ask_for([3, 1], 2, 1, sampling=Sampling(temperature=temperature)))
        want = LAW[3, 1] ** (1 / temperature)
        np.testing.assert_allclose(dense(answer.rows[0], 5), want / want.sum(), atol=1e-6)


async def test_a_context_of_one_token_has_row_zero_for_the_missing_one() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        answer = await peer.talk.ask(ask_for([2], 1, 1))
        np.testing.assert_allclose(dense(answer.rows[0], 5), LAW[0, 2], atol=1e-6)


async def test_tokens_follow_the_row_over_many_draws() -> None:
    """The service's own draws, by key, have the law's frequencies."""
    async with draft_peer(law_drafter(LAW)) as peer:
        counts = np.zeros(5)
        for start in range(100):
            asks = [
                ask_for([3, 1], 2, 1, session_id=session, draft_key=KEY * (1 + session + 100 * start) % 2**64)
                for session in range(100)
            ]
            for answer in await peer.talk.ask_all(asks):
                counts[answer.token_ids[0]] += 1
        expected = LAW[3, 1] * counts.sum()
        assert ((counts - expected) ** 2 / expected).sum() < 28  # 4 degrees of freedom: p = 1e-5


async def test_top_k_1_makes_the_row_one_hot() -> None:
    """C2: the row is what was sampled from, after the draft's transform."""
    law = np.broadcast_to([0.5, 0.3, 0.2], (3, 3, 3)).copy()
    async with draft_peer(law_drafter(law)) as peer:
        answer = await peer.talk.ask(ask_for([0, 0], 2, 4, sampling=Sampling(top_k=1)))
        assert answer.token_ids == [0, 0, 0, 0]
        assert [dense(row, 3).tolist() for row in answer.rows] == [[1, 0, 0]] * 4
        assert answer.logprobs == [0, 0, 0, 0]


async def test_top_k_renormalises_the_row() -> None:
    """C19, draft side: what truncation leaves sums to 1 again."""
    law = np.broadcast_to([0.4, 0.3, 0.2, 0.1], (4, 4, 4)).copy()
    async with draft_peer(law_drafter(law)) as peer:
        answer = await peer.talk.ask(ask_for([0, 0], 2, 1, sampling=Sampling(top_k=2)))
        np.testing.assert_allclose(dense(answer.rows[0], 4), [4 / 7, 3 / 7, 0, 0], atol=1e-6)


@pytest.mark.parametrize("rule", list(Rule))
async def test_temperature_0_sends_the_argmax_and_no_row(rule: Rule) -> None:
    """C20: a greedy draft is one-hot."""
    async with draft_peer(law_drafter(LAW)) as peer:
        answer = await peer.talk.ask(ask_for([3, 1], 2, 3, sampling=Sampling(temperature=0), rule=rule))
        expected, context = [], [3, 1]
        for _ in range(3):
            expected.append(int(LAW[context[-2], context[-1]].argmax()))
            context.append(expected[-1])
        assert answer.token_ids == expected
        assert answer.rows == []


async def test_the_second_token_follows_from_the_first() -> None:
    """C16, draft side: a chain 0 -> 1 -> 2 is drafted in order, and from where the context ends."""
    law = np.zeros((3, 3, 3))
    law[:, 0, 1] = law[:, 1, 2] = law[:, 2, 0] = 1
    async with draft_peer(law_drafter(law)) as peer:
        assert (await peer.talk.ask(ask_for([2, 0], 2, 3))).token_ids == [1, 2, 0]
        assert (await peer.talk.ask(ask_for([2, 0, 1], 1, 2))).token_ids == [2, 0]
        assert (await peer.talk.ask(ask_for([2, 0, 1, 0], 1, 1))).token_ids == [1]


async def test_the_request_can_only_lower_max_row() -> None:
    async with draft_peer(law_drafter(LAW), limits=EngineLimits(max_row=3, row_mass=1.0)) as peer:
        for wanted, sent in ((0, 3), (2, 2), (5, 3)):
            answer = await peer.talk.ask(ask_for([3, 1], 2, 1, max_row=wanted))
            ids, weights = decode_row(answer.rows[0])
            assert len(ids) == sent
            assert set(ids.tolist()) == set(np.argsort(-LAW[3, 1])[:sent].tolist())
            assert weights.sum() == ROW_TOTAL


async def test_rows_stay_small_at_a_large_vocabulary() -> None:
    """C24: 8 drafted at a vocabulary of 152,064 come nowhere near 4 MiB (dense rows would be 4.9 MB)."""
    size = 152_064
    probs = 1 / np.arange(1, size + 1)
    level = Level(0, np.zeros(1, np.uint64), np.array([0, size]), np.arange(size, dtype=np.uint32), probs)
    async with draft_peer(table_drafter(NgramTable((level,), size)), limits=EngineLimits()) as peer:
        ask = ask_for([5, 6], 2, 8)
        answer = await peer.talk.ask(ask)
        assert_honest(answer, ask, size)
        assert all(len(row) == 128 * 8 for row in answer.rows)
        assert sum(frame.ByteSize() for frame in peer.talk.frames) < 9_000


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        (Sampling(), Rule.BLOCK),
        (Sampling(temperature=0.5, top_k=3), Rule.TOKEN),
        (Sampling(temperature=0), Rule.BLOCK),
        (Sampling(presence_penalty=0.7, repetition_penalty=1.2, frequency_penalty=0.1), Rule.BLOCK),
    ],
)
async def test_scores_are_those_of_the_rows_a_block_there_would_have_had(sampling: Sampling, rule: Rule) -> None:
    """Every token a delta can hold, at every place in it, against blocks of one token that start there."""
    async with draft_peer(law_drafter(LAW)) as peer, draft_peer(law_drafter(LAW)) as other:
        context = [3, 1, 4]
        await peer.talk.ask(ask_for(context, 3, 0))
        for delta in ([0, 2, 4], [1, 1, 1], [3], [4, 0, 2, 1]):
            scored = await peer.talk.ask(
                ask_for(context + delta, len(delta), 0, sampling=sampling, rule=rule, want_scores=True)
            )
            assert scored.end is not None
            for place, token in enumerate(delta):
                there = context + delta[:place]
                block = await other.talk.ask_or_open(ask_for(there, 0, 1, sampling=sampling, rule=rule), there)
                probability = dense(block.rows[0], 5)[token] if block.rows else float(block.token_ids[0] == token)
                score = scored.end.delta_logprobs[place]
                assert math.exp(score) == pytest.approx(probability, rel=1e-6)
            assert scored.end.delta_guessed == b""
            context += delta


async def test_coupled_scores_say_what_a_block_there_would_have_guessed() -> None:
    async with draft_peer(law_drafter(LAW)) as peer:
        context = [3, 1]
        drafted = await peer.talk.ask(ask_for(context, 2, 4, rule=Rule.COUPLED))
        assert drafted.rows == []
        wrong = (drafted.token_ids[2] + 1) % 5
        delta = [*drafted.token_ids[:2], wrong]
        scored = await peer.talk.ask(ask_for(context + delta, 3, 0, rule=Rule.COUPLED, want_scores=True))
        assert scored.end is not None
        assert scored.end.delta_guessed == bytes([1, 1, 0])


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.7, top_p=0.8), Sampling(top_k=2), Sampling(min_p=0.2)])
async def test_under_coupled_a_kept_law_guesses_what_the_kernels_would(sampling: Sampling) -> None:
    """At any position and seed, also in a context met before."""
    levels = law_to_levels(LAW)
    async with draft_peer(law_drafter(LAW)) as peer:
        context = [3, 1]
        for seed in range(20):
            more = {"session_id": 10 + seed, "draft_key": seed, "sampling": sampling, "rule": Rule.COUPLED}
            ask = ask_for(context, 2, 4, **more)
            answer, tail = await peer.talk.ask(ask), list(context)
            for offset, token in enumerate(answer.token_ids):
                item = DraftInput(2, offset, sampling, Rule.COUPLED, seed, None, 128, 0.995)
                distribution = levels[0].distribution(tail[-2] * 5 + tail[-1])
                assert sample_sparse([distribution], [item])[0].token_id == token
                assert answer.logprobs[offset] == pytest.approx(
                    sample_sparse([distribution], [item])[0].logprob, abs=1e-5
                )
                tail.append(token)


async def test_a_table_written_and_read_again_is_the_same(tmp_path: Path) -> None:
    table = NgramTable(law_to_levels(LAW), 5, name="law", tokenizer_digest="ab", eos_token_ids=frozenset({4}))
    save_table(tmp_path / "law.npz", table)
    again = load_table(tmp_path / "law.npz")
    assert (again.vocabulary_size, again.name, again.tokenizer_digest, again.eos_token_ids) == (5, "law", "ab", {4})
    assert len(again.digest) == 64
    for before, after in zip(table.levels, again.levels, strict=True):
        np.testing.assert_array_equal(before.probs, after.probs)
    drafter = make_drafter("table", {"path": str(tmp_path / "law.npz")})
    assert isinstance(drafter, TableDrafter)
    assert drafter.info.vocabulary_size == 5


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("ids_2", np.array([0, 9]), "ids_2"),
        ("ids_2", np.array([1, 0]), "ids_2"),
        ("probs_2", np.array([0.5, np.nan]), "probs_2"),
        ("probs_2", np.array([0.5, 0.0]), "probs_2"),
        ("offsets_2", np.array([0, 1]), "offsets_2"),
        ("keys_2", np.array([99], np.uint64), "keys_2"),
    ],
)
def test_a_table_that_no_verifier_could_take_is_refused_by_name(
    tmp_path: Path, part: str, value: np.ndarray, named: str
) -> None:
    good = {
        "vocabulary_size": np.int64(5),
        "keys_2": np.array([3], np.uint64),
        "offsets_2": np.array([0, 2]),
        "ids_2": np.array([0, 1], np.uint32),
        "probs_2": np.array([0.5, 0.5]),
    }
    np.savez(tmp_path / "good.npz", **good)
    assert load_table(tmp_path / "good.npz").vocabulary_size == 5
    np.savez(tmp_path / "bad.npz", **(good | {part: value}))
    with pytest.raises(InvalidValue) as refused:
        load_table(tmp_path / "bad.npz")
    assert refused.value.field == named


def test_a_file_that_is_not_there_or_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no table")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for name in ("nowhere.npz", "text.npz", "other.npz"):
        with pytest.raises(InvalidValue, match=f"drafter.path: .*{name}"):
            make_drafter("table", {"path": tmp_path / name})
    with pytest.raises(ConfigError, match=r"drafter\.path: is required"):
        make_drafter("table", {})


async def test_a_context_unknown_to_the_table_backs_off() -> None:
    pairs = Level(2, np.array([1 * 5 + 2], np.uint64), np.array([0, 1]), np.array([3], np.uint32), np.array([1.0]))
    unigram = Level(0, np.zeros(1, np.uint64), np.array([0, 1]), np.array([4], np.uint32), np.array([0.25]))
    async with draft_peer(table_drafter(NgramTable((pairs, unigram), 5)), limits=WHOLE_ROWS) as peer:
        assert (await peer.talk.ask(ask_for([1, 2], 2, 2))).token_ids == [3, 4]
    async with draft_peer(table_drafter(NgramTable((pairs,), 5))) as peer:
        answer = await peer.talk.ask(ask_for([1, 2], 2, 2))
        assert (answer.token_ids, answer.reason) == ([3], "CONFIDENCE")


@pytest.mark.parametrize("context", [[1, 2], [3]], ids=["known", "unknown"])
async def test_what_is_kept_is_bounded_however_many_samplings_there_are(context: list[int]) -> None:
    pairs = Level(2, np.array([1 * 5 + 2], np.uint64), np.array([0, 1]), np.array([3], np.uint32), np.array([1.0]))
    drafter = TableDrafter(NgramTable((pairs,), 5), max_context_tokens=64, max_kept_rows=8)
    async with draft_peer(drafter) as peer:
        for step in range(50):
            sampling = Sampling(temperature=1 + step / 64)
            await peer.talk.ask(ask_for(context, len(context), 1, session_id=step + 1, sampling=sampling))
            assert drafter.num_kept <= 8 + 2

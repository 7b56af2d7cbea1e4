"""Rows on the wire: what is sent is what was sampled from, and a draft that says otherwise is caught."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.philox import draft_draws, philox
from specmesh.runtime.rows import check_block, decode_row, draw_from_row, encode_row
from specmesh.runtime.types import BlockRefusal

KEY = 0x0123456789ABCDEF
START = 40
VOCABULARY = 50


def honest_block(length: int, key: int = KEY, start: int = START) -> tuple[list[int], list[bytes]]:
    """Tokens truly drawn from the rows that are sent."""
    ids = np.array([3, 7, 20, 49])
    weights = np.array([ROW_TOTAL - 6_000_003, 3, 1_000_000, 5_000_000])
    tokens = [int(ids[draw_from_row(weights, draw)]) for draw in draft_draws(key, start, length).tolist()]
    return tokens, [encode_row(ids, weights)] * length


def refusal(token_ids: list[int], rows: list[bytes]) -> BlockRefusal | None:
    return check_block(token_ids, rows, vocabulary_size=VOCABULARY, draft_key=KEY, block_start=START)[0]


def test_philox_gives_the_published_known_answers() -> None:
    """Random123's vectors for philox4x32-10."""
    assert [int(w) for w in philox(0, (0, 0, 0, 0))] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert [int(w) for w in philox(2**64 - 1, (ones,) * 4)] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_the_counter_words_broadcast_and_each_one_matters() -> None:
    base = int(philox(KEY, (1, 2, 3, 4))[0])
    changed = [philox(KEY, c)[0] for c in ((9, 2, 3, 4), (1, 9, 3, 4), (1, 2, 9, 4), (1, 2, 3, 9))]
    assert all(int(word) != base for word in changed)
    assert int(philox(KEY, (1, 2, 3, np.arange(6)))[0][4]) == base


@given(
    ids=st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_row_survives_the_wire(ids: set[int], seed: int) -> None:
    sorted_ids = np.array(sorted(ids), dtype=np.uint32)
    weights = np.random.default_rng(seed).integers(1, 1000, len(ids))
    back_ids, back_weights = decode_row(encode_row(sorted_ids, weights))
    assert back_ids.tolist() == sorted_ids.tolist()
    assert back_weights.tolist() == weights.tolist()


def test_the_drawn_index_is_the_first_whose_cumulative_weight_exceeds_the_draw() -> None:
    weights = np.array([5, 1, ROW_TOTAL - 6])
    assert [draw_from_row(weights, draw) for draw in (0, 4, 5, 6, ROW_TOTAL - 1)] == [0, 0, 1, 2, 2]


def test_an_honest_block_passes_at_any_length() -> None:
    for length in range(9):
        tokens, rows = honest_block(length)
        found, decoded = check_block(tokens, rows, vocabulary_size=VOCABULARY, draft_key=KEY, block_start=START)
        assert found is None
        assert len(decoded) == length


def test_a_block_without_rows_is_one_hot_and_needs_only_ids_in_the_vocabulary() -> None:
    assert refusal([0, VOCABULARY - 1], []) is None
    assert refusal([0, VOCABULARY], []) is BlockRefusal.TOKEN_OUT_OF_VOCABULARY
    assert refusal([-1], []) is BlockRefusal.TOKEN_OUT_OF_VOCABULARY


def test_a_token_outside_its_own_row_is_a_bad_block() -> None:
    """C5: a ratio of infinity can never be tested, so it can never accept."""
    tokens, rows = honest_block(2)
    assert refusal([tokens[0], 4], rows) is BlockRefusal.TOKEN_OUT_OF_ROW


def test_a_draft_that_declares_weight_one_for_what_it_always_sends_is_caught() -> None:
    """C35: D(0) = 2^-24 would be accepted every time; drawn again from its row, 0 is not what comes out."""
    row = encode_row(np.array([0, 1]), np.array([1, ROW_TOTAL - 1]))
    assert refusal([0], [row]) is BlockRefusal.RESAMPLE_MISMATCH


def test_a_draft_that_samples_another_distribution_is_caught_within_a_few_blocks() -> None:
    """C35: about 0.6 of mis-sampled tokens differ here."""
    ids, declared, sampled = np.arange(3), np.array([1, 1, 2]), np.array([2, 1, 1])
    declared, sampled = declared * (ROW_TOTAL // 4), sampled * (ROW_TOTAL // 4)
    caught = 0
    for start in range(200):
        draw = int(draft_draws(KEY + 1, start, 1)[0])
        token = int(ids[draw_from_row(sampled, draw)])
        found, _ = check_block(
            [token], [encode_row(ids, declared)], vocabulary_size=3, draft_key=KEY, block_start=start
        )
        caught += found is BlockRefusal.RESAMPLE_MISMATCH
    assert 90 <= caught <= 160


def test_a_token_drawn_with_another_key_or_at_another_start_is_refused() -> None:
    for key, start in ((KEY ^ 1, START), (KEY, START + 1)):
        tokens, rows = honest_block(16, key, start)
        assert refusal(tokens, rows) is BlockRefusal.RESAMPLE_MISMATCH


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        ([3, 2], [ROW_TOTAL - 1, 1]),
        ([2, 2], [ROW_TOTAL - 1, 1]),
        ([2, 3], [ROW_TOTAL, 0]),
        ([2, 3], [ROW_TOTAL - 1, 2]),
        ([2, 3], [2, 3]),
        ([], []),
    ],
    ids=["descending", "repeated", "zero weight", "sum above", "sum below", "empty"],
)
def test_a_malformed_row_is_refused(ids: list[int], weights: list[int]) -> None:
    """C19 among them: a row whose weights do not sum to the whole is no distribution."""
    row = encode_row(np.array(ids, dtype=np.int64), np.array(weights, dtype=np.int64))
    assert refusal([2], [row]) is BlockRefusal.MALFORMED_ROW


def test_a_row_of_odd_bytes_or_a_missing_row_is_refused() -> None:
    tokens, rows = honest_block(2)
    assert refusal(tokens, [rows[0], rows[1][:-1]]) is BlockRefusal.MALFORMED_ROW
    assert refusal(tokens, rows[:1]) is BlockRefusal.MALFORMED_ROW


def test_a_row_that_names_an_id_outside_the_vocabulary_is_refused() -> None:
    row = encode_row(np.array([1, VOCABULARY]), np.array([ROW_TOTAL - 1, 1]))
    assert refusal([1], [row]) is BlockRefusal.TOKEN_OUT_OF_VOCABULARY


def test_eight_drafted_tokens_stay_far_from_the_message_limit() -> None:
    """C24: dense rows of a vocabulary of 152,064 would be 4.9 MB; sparse ones are at most 8 kB."""
    ids = np.arange(152_064 - 128, 152_064)
    weights = np.full(128, ROW_TOTAL // 128)
    assert sum(len(encode_row(ids, weights)) for _ in range(8)) == 8 * 128 * 8

"""The table target: what it computes, that it reads its cache, and which files it refuses."""

from pathlib import Path

import numpy as np
import pytest
from verifier_parts import random_logits

from specmesh.model.spans import Span
from specmesh.verifier.target import TableTarget, load_table, save_table

LOGITS = random_logits(5, seed=1)


def target() -> TableTarget:
    table = TableTarget(LOGITS)
    table.allocate_cache(8)
    return table


def test_a_row_depends_on_the_last_two_tokens() -> None:
    rows = target().forward([Span([3, 1, 4], 0, [2], first_row=0)])
    np.testing.assert_array_equal(rows, [LOGITS[0, 3], LOGITS[3, 1], LOGITS[1, 4]])


def test_only_the_rows_wanted_come_back_spans_in_order() -> None:
    spans = [Span([3, 1], 0, [0], 2), Span([2, 2], 0, [1], 1), Span([4], 0, [2], 0)]
    np.testing.assert_array_equal(target().forward(spans), [LOGITS[2, 2], LOGITS[0, 4]])


def test_what_came_before_is_read_from_the_blocks_of_the_table() -> None:
    table = target()
    table.forward([Span([1] * 15 + [3], 0, [5], 16), Span([2] * 16, 0, [6], 16)])
    np.testing.assert_array_equal(table.forward([Span([4], 16, [5, 7], 0)]), [LOGITS[3, 4]])
    np.testing.assert_array_equal(table.forward([Span([4], 16, [6, 7], 0)]), [LOGITS[2, 4]])


def test_a_rollback_is_by_position() -> None:
    table = target()
    table.forward([Span([1, 2, 3, 4], 0, [0], 0)])
    np.testing.assert_array_equal(table.forward([Span([0, 4], 2, [0], 0)]), [LOGITS[2, 0], LOGITS[0, 4]])


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    save_table(tmp_path / "t.npz", LOGITS, vocabulary_size=4)
    table = load_table(tmp_path / "t.npz", max_context_tokens=99)
    table.allocate_cache(1)
    assert (table.vocabulary_size, table.max_context_tokens) == (4, 99)
    np.testing.assert_array_equal(table.forward([Span([3], 0, [0], 0)]), [LOGITS[0, 3]])


@pytest.mark.parametrize("shape", [(5, 5), (5, 4, 5), (5, 5, 4)])
def test_a_table_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="logits: expected"):
        TableTarget(np.zeros(shape, np.float32))


@pytest.mark.parametrize("size", [0, 6])
def test_a_vocabulary_that_is_not_in_the_table_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="vocabulary_size"):
        TableTarget(LOGITS, vocabulary_size=size)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", weights=LOGITS)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not a table")
    for name, said in (("other", "no array"), ("broken", "broken.npz")):
        with pytest.raises(ValueError, match=said):
            load_table(tmp_path / f"{name}.npz")

"""Where tokens lie in a ragged forward: as arrays, what one would count by hand."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from specmesh.model.blocks import BLOCK_TOKENS, blocks_for
from specmesh.model.layout import layout_of
from specmesh.model.plan import span_slots, wanted_rows
from specmesh.model.spans import Span


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start, count, more = draw(st.tuples(st.integers(0, 70), st.integers(0, 40), st.integers(0, 3)))
    size = blocks_for(start + count) + more
    table = draw(st.lists(st.integers(0, 1 << 17), min_size=size, max_size=size))
    form = draw(st.sampled_from([list, tuple, lambda blocks: array("i", blocks)]))
    return Span(list(range(count)), start, form(table), draw(st.integers(0, count)))


@given(st.lists(spans(), min_size=1, max_size=6), st.sampled_from([1, 4, 8]))
def test_every_token_has_its_place_and_its_tile(batch: list[Span], queries: int) -> None:
    layout = layout_of(batch)
    flat = [(span, at) for span in batch for at in range(len(span.token_ids))]
    assert layout.ids.tolist() == [span.token_ids[at] for span, at in flat]
    assert layout.positions.tolist() == [span.start + at for span, at in flat]
    assert layout.slots.tolist() == span_slots(batch).tolist()
    assert layout.wanted_rows.tolist() == wanted_rows(batch).tolist()
    seen = []
    for row, position, count, table in layout.tiles(queries).tolist():
        assert 1 <= count <= queries
        for at in range(count):
            place = position + at
            assert layout.slots[row + at] == layout.tables[table + place // 16] * BLOCK_TOKENS + place % BLOCK_TOKENS
        seen += range(row, row + count)
    assert seen == list(range(len(flat)))


def test_no_tokens_have_no_place() -> None:
    layout = layout_of([Span([], 5, [3], 0)])
    assert layout.tiles(8).shape == (0, 4)
    assert layout.slots.size == layout.wanted_rows.size == 0

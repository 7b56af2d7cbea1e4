"""Recorded forwards by size: after the warm-up every tick of up to 128 sessions finds its own, and fits it."""

from array import array
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specmesh.model.attention import AttentionShape, PagedCache
from specmesh.model.blocks import blocks_for
from specmesh.model.graphs import Recorded, TickGraphs
from specmesh.model.spans import Span

MAX_ROWS, MAX_CHUNK = 512, 256
"""As a verifier has them by default."""
HEADS = [AttentionShape(32, 8, 128, 128), AttentionShape(4, 2, 64, 64), AttentionShape(71, 1, 64, 64)]


class Recorder:
    """Records nothing and counts how often it is asked to."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, forward: Callable[[], Tensor]) -> Recorded:
        self.count += 1
        return Recorded(torch.zeros(MAX_ROWS + MAX_CHUNK, 1), lambda: None)


def warm(attention: AttentionShape) -> tuple[TickGraphs, Recorder]:
    cache = PagedCache(*(torch.zeros(1, 2, 16, attention.num_kv_heads, 1) for _ in range(2)))
    recorder = Recorder()
    graphs = TickGraphs(
        lambda **inputs: None, cache, attention, max_rows=MAX_ROWS, max_chunk=MAX_CHUNK, max_context=8192,
        record=recorder,
    )  # fmt: skip
    graphs.record_all()
    return graphs, recorder


WARM = {attention: warm(attention) for attention in HEADS}


def span(tokens: int, rows: int, start: int) -> Span:
    return Span([7] * tokens, start, array("i", range(blocks_for(start + tokens))), tokens - rows)


@st.composite
def ticks(draw: st.DrawFn) -> list[Span]:
    """What `batcher.plan` may choose: blocks while the rows last, chunks while their budget lasts, or both in one."""
    spans, rows, budget = list[Span](), MAX_ROWS, MAX_CHUNK
    for length in draw(st.lists(st.integers(1, 65), max_size=draw(st.sampled_from([3, 40, 100])))):
        chunk = draw(st.sampled_from([0, 0, 0, 1, 30, 64, 100, 256]))
        if length <= rows and chunk <= budget:
            rows, budget = rows - length, budget - chunk
            spans.append(span(chunk + length, length, draw(st.integers(0, 300))))
    for chunk in draw(st.lists(st.integers(1, 256), max_size=draw(st.sampled_from([1, 5, 25])))):
        if chunk <= budget:
            budget -= chunk
            spans.append(span(chunk, 0, draw(st.integers(0, 300))))
    return spans or [span(1, 1, 0)]


@pytest.mark.parametrize("attention", HEADS, ids=str)
@given(data=st.data())
def test_nothing_is_recorded_for_a_tick_and_what_it_takes_has_room(
    attention: AttentionShape, data: st.DataObject
) -> None:
    graphs, recorder = WARM[attention]
    recorded, spans = recorder.count, data.draw(ticks())
    bucket = graphs.bucket_of(spans)
    assert bucket is not None
    lengths = [len(each.token_ids) for each in spans]
    assert bucket.tokens >= sum(lengths)
    assert bucket.tiles >= sum(-(-length // bucket.queries) for length in lengths)
    rows = sum(lengths) - sum(each.first_row for each in spans)
    assert len(graphs.run(spans, bucket)) == rows
    assert recorder.count == recorded


@pytest.mark.parametrize("attention", HEADS, ids=str)
@pytest.mark.parametrize(
    "spans",
    [
        [span(1, 1, 40)] * 512,
        [span(5, 5, 40)] * 102 + [span(256, 0, 0)],
        [span(1, 1, 40)] * 30 + [span(66, 0, 0)],
        [span(1, 1, 40)] * 100 + [span(66, 0, 0)],
        [span(1, 1, 40)] * 128 + [span(256, 0, 0)],
        [span(256, 0, 8000)],
    ],
    ids=["plain", "drafted, a prompt", "few, a short prompt", "many, a short prompt", "many, a prompt", "late chunk"],
)
def test_ticks_of_many_sessions_are_recorded(attention: AttentionShape, spans: list[Span]) -> None:
    graphs, recorder = WARM[attention]
    recorded, bucket = recorder.count, graphs.bucket_of(spans)
    assert bucket is not None
    graphs.run(spans, bucket)
    assert recorder.count == recorded


def test_more_sessions_beside_a_chunk_than_it_has_room_for_are_launched_one_by_one() -> None:
    graphs, _ = WARM[HEADS[0]]
    assert graphs.bucket_of([span(1, 1, 40)] * 200 + [span(66, 0, 0)]) is None

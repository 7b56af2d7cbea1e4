"""The reference of paged attention and of the cache write, against plain softmax attention."""

import pytest
import torch
from torch import Tensor

from specmesh.kernels.reference.kv_write import kv_write
from specmesh.kernels.reference.paged_attention import paged_attention
from specmesh.model.attention import AttentionShape, tile_groups
from specmesh.model.plan import PlanShape, Span, make_plan

BLOCKS = 24
SHAPES = [AttentionShape(4, 4, 16, 16), AttentionShape(6, 2, 20, 12), AttentionShape(3, 1, 64, 64)]
SPANS = [
    Span([0] * 5, 40, [7, 3, 11], 0),
    Span([0], 0, [5], 0),
    Span([0] * 70, 3, [0, 2, 4, 6, 8], 0),
    Span([0] * 2, 149, [9, 10, 12, 13, 14, 15, 16, 17, 18, 19], 0),
]


def plan_shape(attention: AttentionShape, independent_rows: bool) -> PlanShape:
    return PlanShape(
        attention=attention,
        dtype=torch.float32,
        device=torch.device("cpu"),
        zero_block=BLOCKS,
        tile_queries=16 if independent_rows else 64,
        tile_blocks=8 if independent_rows else 1,
        independent_rows=independent_rows,
    )


def run(spans: list[Span], query: Tensor, caches: tuple[Tensor, Tensor], shape: PlanShape) -> Tensor:
    plan = make_plan(spans, query.shape[0], shape)
    return paged_attention(
        query, *caches, tile_groups(plan.tiles, plan.scratch), plan.order, 0.3, shape.independent_rows
    )


def random_caches(shape: AttentionShape) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    keys = torch.randn(BLOCKS + 1, 16, shape.num_kv_heads, shape.key_size, generator=generator)
    values = torch.randn(BLOCKS + 1, 16, shape.num_kv_heads, shape.value_size, generator=generator)
    keys[BLOCKS], values[BLOCKS] = 0.0, 0.0
    return keys, values


def expected(spans: list[Span], query: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
    """Query by query, head by head."""
    rows = []
    for span in spans:
        keys, values = (cache[list(span.block_table)].flatten(0, 1) for cache in caches)
        sharing = query.shape[1] // keys.shape[1]
        for position in range(span.start, span.end):
            seen, known = keys[: position + 1], values[: position + 1]
            heads = [
                torch.softmax(seen[:, head // sharing] @ query[len(rows), head] * 0.3, 0) @ known[:, head // sharing]
                for head in range(query.shape[1])
            ]
            rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("independent_rows", [False, True])
@pytest.mark.parametrize("attention", SHAPES, ids=str)
def test_every_query_attends_to_its_own_session_up_to_itself(attention: AttentionShape, independent_rows: bool) -> None:
    caches = random_caches(attention)
    query = torch.randn(78, attention.num_heads, attention.key_size, generator=torch.Generator().manual_seed(6))
    found = run(SPANS, query, caches, plan_shape(attention, independent_rows))
    torch.testing.assert_close(found, expected(SPANS, query, caches), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("attention", SHAPES, ids=str)
def test_a_row_has_the_same_bits_alone_and_beside_others(attention: AttentionShape) -> None:
    caches = random_caches(attention)
    query = torch.randn(78, attention.num_heads, attention.key_size, generator=torch.Generator().manual_seed(6))
    together = run(SPANS, query, caches, plan_shape(attention, True))
    row = 0
    for span in SPANS:
        for offset in range(len(span.token_ids)):
            alone = Span([0], span.start + offset, span.block_table, 0)
            found = run([alone], query[row : row + 1], caches, plan_shape(attention, True))
            assert torch.equal(found[0], together[row])
            row += 1


def test_kv_write_stores_the_given_tokens_and_no_padding() -> None:
    keys, values = torch.zeros(3, 16, 2, 4), torch.zeros(3, 16, 2, 6)
    key, value = torch.randn(5, 2, 4), torch.randn(5, 2, 6)
    slots = torch.tensor([33, 2, 47])
    kv_write(key, value, keys, values, slots)
    assert torch.equal(keys.flatten(0, 1)[slots], key[:3])
    assert torch.equal(values.flatten(0, 1)[slots], value[:3])
    assert keys.count_nonzero() == 3 * 8
    assert values.count_nonzero() == 3 * 12

"""Paged attention and cache writes in Triton against plain softmax, on one device.

`python tests/compiled_attention.py cpu` runs all cases there and prints their errors as JSON; under Triton's
interpreter, which must be chosen before Triton is imported, so in a process of its own.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specmesh.model.attention import AttentionShape
from specmesh.model.graphs import Recorded
from specmesh.model.spans import Span

BLOCKS = 24
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
FORMS = ((False, False), (True, False), (True, True))
"""Of a model: forwards recorded or not, layers fused or not."""
SPANS = (
    Span([0] * 5, 40, [7, 3, 11], 0),
    Span([0], 0, [5], 0),
    Span([0] * 37, 3, [0, 2, 4], 0),
    Span([], 9, [20], 0),
    Span([0] * 2, 149, [9, 10, 12, 13, 14, 15, 16, 17, 18, 19], 0),
)


@dataclass(frozen=True)
class Case:
    """One batch of `SPANS`; `scale` large enough that attention is far from uniform."""

    dtype: str
    shape: AttentionShape
    splits: int

    @property
    def name(self) -> str:
        sizes = (self.shape.num_heads, self.shape.num_kv_heads, self.shape.key_size, self.shape.value_size)
        return f"{self.dtype}-{'-'.join(map(str, sizes))}-{self.splits}"


CASES = [
    Case("float32", AttentionShape(4, 2, 64, 64), 1),
    Case("float32", AttentionShape(4, 2, 64, 64), 4),
    Case("float32", AttentionShape(2, 2, 256, 256), 2),
    Case("float32", AttentionShape(8, 2, 192, 256), 1),
    Case("float16", AttentionShape(6, 2, 80, 96), 2),
    Case("bfloat16", AttentionShape(3, 1, 128, 64), 1),
    Case("bfloat16", AttentionShape(8, 1, 96, 128), 4),
]


def random(generator: torch.Generator, *size: int) -> Tensor:
    return torch.randn(*size, generator=generator)


def error_of(case: Case, device: str) -> float:
    """Largest difference; NaN when something was read that belongs to nobody or to another session."""
    from specmesh.kernels.compiled.kv_write import kv_write
    from specmesh.kernels.compiled.paged_attention import Tiling, paged_attention
    from specmesh.model.layout import layout_of
    from specmesh.model.tiles import queries_per_tile

    shape, dtype = case.shape, DTYPES[case.dtype]
    generator = torch.Generator().manual_seed(5)
    layout = layout_of(SPANS)
    num_tokens = sum(len(span.token_ids) for span in SPANS)
    # Strides as a model has them: heads first.
    query = random(generator, shape.num_heads, num_tokens, shape.key_size).to(device, dtype).transpose(0, 1)
    key = random(generator, shape.num_kv_heads, num_tokens, shape.key_size).to(device, dtype).transpose(0, 1)
    value = random(generator, shape.num_kv_heads, num_tokens, shape.value_size).to(device, dtype).transpose(0, 1)
    keys, values = (
        torch.full((BLOCKS, 16, shape.num_kv_heads, size), torch.nan, dtype=dtype, device=device)
        for size in (shape.key_size, shape.value_size)
    )
    for span in SPANS:
        for position in range(span.start):
            block = span.block_table[position // 16]
            keys[block, position % 16] = random(generator, *keys.shape[2:]).to(device, dtype)
            values[block, position % 16] = random(generator, *values.shape[2:]).to(device, dtype)
    padding = torch.tensor([-1], device=device)
    kv_write(key, value, keys, values, torch.cat((torch.from_numpy(layout.slots).to(device), padding))[:num_tokens])
    queries = queries_per_tile(SPANS, shape.num_heads // shape.num_kv_heads)
    tiles, tables = (torch.from_numpy(array.copy()).to(device) for array in (layout.tiles(queries), layout.tables))
    tiles = torch.cat((tiles, tiles.new_tensor([[0, 30, 0, 1]])))  # padding
    found = paged_attention(query, keys, values, tiles, tables, 0.3, Tiling(queries, case.splits))
    return float((found.float() - expected(query, keys, values, 0.3)).abs().max())


def expected(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Query by query, in float32."""
    rows = []
    for span in SPANS:
        held, known = (cache[list(span.block_table)].flatten(0, 1).float() for cache in (keys, values))
        for position in range(span.start, span.end):
            sharing = query.shape[1] // keys.shape[2]
            own = query[len(rows)].float().view(keys.shape[2], sharing, -1)
            scores = torch.einsum("kgd,tkd->kgt", own, held[: position + 1]) * scale
            rows.append(torch.einsum("kgt,tkd->kgd", scores.softmax(-1), known[: position + 1]).flatten(0, 1))
    return torch.stack(rows)


def writes_as_the_reference(device: str) -> bool:
    """Strided rows, a slot that is padding, and no token that is written where it should not be."""
    from specmesh.kernels.compiled import kv_write as compiled
    from specmesh.kernels.reference import kv_write as reference

    generator = torch.Generator().manual_seed(1)
    key = random(generator, 3, 5, 20).to(device).transpose(0, 1)
    value = random(generator, 5, 24, 3).to(device).transpose(1, 2)
    caches = [[torch.zeros(3, 16, 3, size, device=device) for size in (20, 24)] for _ in range(2)]
    slots = torch.tensor([33, 2, 47], device=device)
    reference.kv_write(key, value, *caches[0], slots)
    compiled.kv_write(key, value, *caches[1], torch.cat((slots, slots.new_tensor([-1]))))
    return all(torch.equal(one, other) for one, other in zip(*caches, strict=True))


def again(forward: Callable[[], Tensor]) -> Recorded:
    """Stands in for a CUDA graph where there is none: what is recorded is run again."""
    kept = forward().clone()

    def replay() -> None:
        kept.copy_(forward())

    return Recorded(kept, replay)


def model_error(device: str, *, recorded: bool, fused: bool) -> float:
    """A tiny model over the compiled attention against transformers' own: chunks, company and a rolled-back block.

    `recorded`: every forward is a recorded one; `fused`: its layers are the fused ones.
    """
    from model_builders import paged_twin, plain_logits, plain_model, random_ids

    plain = plain_model()
    model = paged_twin(plain, device=device, compiled=True, fused=fused)
    if recorded:
        model.warm_up(4, 40, None if device == "cuda" else again)
    sessions = [random_ids(50, 1), random_ids(33, 2)]
    tables: Sequence[Sequence[int]] = ([0, 11, 5, 9], [8, 7, 6])  # 0: where padding must not be written
    pieces: list[list[Tensor]] = [[], []]
    for cuts in (((0, 30), (0, 5)), ((30, 32), (5, 7)), ((32, 33), (7, 9)), ((33, 50), (9, 33))):
        wrong = [Span(random_ids(2, 7), first, table, 2) for (first, _), table in zip(cuts, tables, strict=True)]
        model.forward(wrong)
        spans = [
            Span(session[first:last], first, table, 0)
            for session, table, (first, last) in zip(sessions, tables, cuts, strict=True)
        ]
        rows = torch.split(model.forward(spans), [last - first for first, last in cuts])
        for piece, row in zip(pieces, rows, strict=True):
            piece.append(row.cpu().clone())
    return max(
        float((torch.cat(piece) - plain_logits(plain, session)).abs().max())
        for piece, session in zip(pieces, sessions, strict=True)
    )


def main(device: str) -> None:
    errors = {case.name: error_of(case, device) for case in CASES}
    models = [model_error(device, recorded=recorded, fused=fused) for recorded, fused in FORMS]
    json.dump({"errors": errors, "writes": writes_as_the_reference(device), "model": models}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])

"""Products of few rows with a large weight matrix. Counterpart of `reference.layer.product`.

Such a product is one read of its weights. Programs take COLUMNS rows of the weight matrix and a share of the inner
size, so that enough of them run to keep the memory busy, and each leaves its part of the sum; whoever reads the result
adds the parts up.
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, N803

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmesh.kernels.compiled.launching import early_options, let_next_launch_begin, wait_for_launch_before

FEW_ROWS = 16
MOST_ROWS = 64
"""More are the library's: there its larger tiles pay."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut: columns per program and inner numbers per turn, parts, warps, turns in flight."""

    columns: int = 64
    inner: int = 128
    parts: int = 1
    warps: int = 4
    stages: int = 4


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    rows, weight, bias, out, num_rows, num_columns, inner_size, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr, BIASED: tl.constexpr, WIDEN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (tile of columns, part)."""
    part = tl.program_id(1)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    held = tl.minimum(columns, num_columns - 1).to(tl.int64) * inner_size
    start = part * share
    stop = tl.minimum(start + share, inner_size)
    if EARLY:
        let_next_launch_begin()
        wait_for_launch_before()
    lanes = tl.arange(0, ROWS)
    inner = tl.arange(0, INNER)
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    from_weight = weight + held[:, None] + inner[None, :]
    from_rows = rows + lanes[None, :].to(tl.int64) * inner_size + inner[:, None]
    mask = lanes[None, :] < num_rows
    for at in range(start, stop, INNER):
        some_weight = tl.load(from_weight + at, eviction_policy="evict_first")
        some_rows = tl.load(from_rows + at, mask=mask, other=0.0)
        if WIDEN:
            some_weight, some_rows = some_weight.to(tl.float32), some_rows.to(tl.float32)
        total = tl.dot(some_weight, some_rows, total, input_precision="ieee")
    if BIASED:  # noqa: SIM102  known when this is compiled
        if part == 0:
            total += tl.load(bias + columns, mask=columns < num_columns, other=0.0).to(tl.float32)[:, None]
    place = out + (part * num_rows + lanes[None, :]).to(tl.int64) * num_columns + columns[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=mask & (columns < num_columns)[:, None])


def product(rows: Tensor, weight: Tensor, bias: Tensor | None, cut: Cut) -> Tensor:
    """`rows` [N, I] and `weight` [C, I], contiguous, I a multiple of `cut.inner`: parts [S, N, C].

    One part has the rows' dtype; several are float32.
    """
    num_rows, inner_size = rows.shape
    num_columns = weight.shape[0]
    turns = inner_size // cut.inner
    share = triton.cdiv(turns, cut.parts) * cut.inner
    parts = triton.cdiv(inner_size, share)
    out = torch.empty(
        parts, num_rows, num_columns, dtype=rows.dtype if parts == 1 else torch.float32, device=rows.device
    )
    # The interpreter multiplies the bits of bfloat16 as if they were integers.
    widen = triton.knobs.runtime.interpret and rows.dtype == torch.bfloat16
    padded = FEW_ROWS if num_rows <= FEW_ROWS else max(MOST_ROWS, triton.next_power_of_2(num_rows))
    _product[(triton.cdiv(num_columns, cut.columns), parts)](
        rows, weight, rows if bias is None else bias, out, num_rows, num_columns, inner_size, share, padded,
        cut.columns, cut.inner, bias is not None, widen, num_warps=cut.warps, num_stages=cut.stages,
        **early_options(rows.device, num_rows),
    )  # fmt: skip
    return out


LEAST_WEIGHTS = 1 << 24
"""Numbers of a weight matrix from which on the cuts below were measured."""


def cut_of(rows: Tensor, weight: Tensor) -> Cut | None:
    """The quickest cut of a product of `rows` [N, I] with `weight` [C, I]; None: the library's is quicker.

    Measured on an H200 within whole forwards of Llama-3-8B's sizes, at 5 and at 40 rows.
    """
    num_columns, inner_size = weight.shape
    few = rows.shape[0] <= FEW_ROWS
    if rows.dtype == torch.float32 or rows.shape[0] > MOST_ROWS or not weight.is_contiguous():
        return None
    cut: Cut | None
    if num_columns > 64_000:
        cut = Cut(columns=128, warps=8, stages=3)
    elif num_columns > 16_000:
        cut = Cut() if few else None
    elif inner_size > 8_000:
        cut = Cut(parts=4) if few else Cut(inner=256, parts=2, stages=3)
    elif num_columns > 5_000:
        cut = Cut(parts=4 if few else 2, stages=3)
    else:
        cut = Cut(parts=2) if few else Cut(parts=4, stages=3)
    if cut is None or inner_size % cut.inner or weight.numel() < LEAST_WEIGHTS:
        return None
    return cut

"""Add a product's parts to the residual stream, and norm it. Counterpart of `reference.layer.add_norm`."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, ANN202, N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmesh.kernels.compiled.launching import early_options, let_next_launch_begin, wait_for_launch_before


@triton.jit
def sum_of_parts(parts, place, stride, mask, PARTS: tl.constexpr):
    """float32: what the parts have at `place`, `stride` apart, added up."""
    total = tl.load(parts + place, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * stride + place, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def _add_norm(
    parts, residual, weight, sum_out, norm_out, epsilon, part_stride, SIZE: tl.constexpr, SIZE_P: tl.constexpr,
    PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (row)."""
    columns = tl.arange(0, SIZE_P)
    mask = columns < SIZE
    scale = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    if EARLY:
        let_next_launch_begin()
        wait_for_launch_before()
    place = tl.program_id(0).to(tl.int64) * SIZE + columns
    row = tl.load(residual + place, mask=mask, other=0.0)
    if PARTS > 0:
        added = sum_of_parts(parts, place, part_stride, mask, PARTS).to(row.dtype)
        row = (row.to(tl.float32) + added.to(tl.float32)).to(row.dtype)
        tl.store(sum_out + place, row, mask=mask)
    wide = row.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + epsilon)
    tl.store(norm_out + place, (scale * wide.to(row.dtype).to(tl.float32)).to(row.dtype), mask=mask)


def add_norm(parts: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Arguments as `reference.layer.add_norm`; all contiguous."""
    num_rows, size = residual.shape
    normed = torch.empty_like(residual)
    added = residual if parts is None else torch.empty_like(residual)
    if num_rows:
        _add_norm[(num_rows,)](
            parts, residual, weight, added, normed, epsilon, 0 if parts is None else parts.stride(0), size,
            triton.next_power_of_2(size), 0 if parts is None else parts.shape[0], num_warps=8 if size > 1024 else 4,
            **early_options(residual.device, num_rows),
        )  # fmt: skip
    return added, normed

"""The gate of a layer's inner rows. Counterpart of `reference.layer.silu_gated`."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmesh.kernels.compiled.add_norm import sum_of_parts
from specmesh.kernels.compiled.launching import early_options, let_next_launch_begin, wait_for_launch_before

TILE = 512


@triton.jit
def _silu_gated(parts, out, size, part_stride, PARTS: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr):
    """Program (tile of columns, row)."""
    if EARLY:
        let_next_launch_begin()
        wait_for_launch_before()
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = columns < size
    place = row * 2 * size + columns
    kind = out.dtype.element_ty
    gate = sum_of_parts(parts, place, part_stride, mask, PARTS).to(kind).to(tl.float32)
    value = sum_of_parts(parts, place + size, part_stride, mask, PARTS).to(kind).to(tl.float32)
    opened = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + row * size + columns, (opened * value).to(kind), mask=mask)


def silu_gated(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Arguments as `reference.layer.silu_gated`; contiguous."""
    num_parts, num_rows, double = parts.shape
    size = double // 2
    out = torch.empty(num_rows, size, dtype=dtype, device=parts.device)
    if num_rows:
        grid = (triton.cdiv(size, TILE), num_rows)
        _silu_gated[grid](parts, out, size, parts.stride(0), num_parts, TILE, **early_options(parts.device, num_rows))
    return out

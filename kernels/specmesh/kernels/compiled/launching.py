"""Starting a launch before the one it follows has ended (programmatic dependent launch, Hopper and later).

A kernel of a chain that is launched so takes `EARLY`: it lets the next one begin at once, does what needs nothing of
the launch before, waits, and goes on. The first of a chain waits before it lets the second begin, which then may read
what was there before the chain. `launches_early` says where that can be had.
"""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN201

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl


class Launch(NamedTuple):
    """A kernel, and what it is launched with."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def run(self) -> None:
        """On the current stream."""
        self.kernel[self.grid](*self.arguments, **self.options)


@triton.jit
def wait_for_launch_before():
    """From here on all that the launch before has written is there."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_launch_begin():
    """The next launch may begin once every program is this far; it still waits for this one's end where it must."""
    tl.extra.cuda.gdc_launch_dependents()


@cache
def launches_early(device: torch.device) -> bool:
    """Whether the device can begin a launch before the one it follows has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


MOST_EARLY_ROWS = 64
"""Measured: beyond them, among the library's products, launches in turn are quicker by a hundredth."""


def early_options(device: torch.device, num_rows: int) -> dict[str, bool]:
    """For the launch of a kernel with `EARLY` in a forward of so many rows."""
    early = num_rows <= MOST_EARLY_ROWS and launches_early(device)
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}

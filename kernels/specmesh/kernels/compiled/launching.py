"""Starting a launch before the one it follows has ended (programmatic dependent launch, Hopper and later)."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN201

import triton
import triton.language as tl


@triton.jit
def wait_for_launch_before():
    """From here on all that the launch before has written is there."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_launch_begin():
    """The next launch may begin once every program is this far; it still waits for this one's end where it must."""
    tl.extra.cuda.gdc_launch_dependents()

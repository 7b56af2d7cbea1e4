"""What plans of verifying and of drafting have in common: numbers that go to the device, and how ids are cut."""

import numpy as np
import torch
from numpy.typing import NDArray

from specmesh.kernels.compiled.totals import MAX_CHUNKS


class Numbers:
    """Room for a packed batch on the host, in pinned memory, and on the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.on_device = torch.zeros(size, dtype=torch.int32, device=device)

    def send(self, numbers: NDArray[np.int32]) -> None:
        """One copy; does not wait for the device."""
        size = len(numbers)
        self._host.numpy()[:size] = numbers
        self.on_device[:size].copy_(self._host[:size], non_blocking=True)


def chunks_of(size: int, chunk: int) -> int:
    """How many chunks so many ids are. Raises ValueError for more than there is code for."""
    chunks = -(-size // chunk)
    if chunks > MAX_CHUNKS:
        raise ValueError(f"at most {MAX_CHUNKS * chunk} ids, got {size}")
    return chunks


def group_of(size: int, smallest: int, most: int) -> int:
    """Ids per group, a doubling of `smallest`, so that `size` ids are at most `most` groups."""
    group = smallest
    while size // group > most:
        group *= 2
    return group

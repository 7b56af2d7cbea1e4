"""Memory and launches of `draft_step` for sessions that sample: a call can be captured in a CUDA graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from specmesh.kernels.compiled import fields
from specmesh.kernels.compiled.buffers import Numbers, chunks_of, group_of
from specmesh.kernels.compiled.draft_rows import draft_row, row_units
from specmesh.kernels.compiled.launching import Launch, launches_early
from specmesh.kernels.compiled.pack import pack
from specmesh.kernels.compiled.pass_one import pass_one
from specmesh.kernels.inputs import DraftInput, VerifyInput
from specmesh.kernels.reference.rows import MAX_ROW
from specmesh.runtime.types import Rule


@dataclass(frozen=True, slots=True)
class DraftTuning:
    """How the work is cut; no outcome depends on it."""

    chunk: int = 4096
    chunk_warps: int = 4
    group: int = 32
    max_groups: int = 4096
    row_warps: int = 8


@dataclass(frozen=True, slots=True)
class DraftForm:
    """What of a batch chooses the compiled code; `room`: the longest row there may be."""

    rows: int
    room: int
    adjust: bool


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Per session: whether its logits were finite, else the rest means nothing; token, its weight, row, `[B]` each."""

    finite: NDArray[np.bool_]
    token_ids: NDArray[np.int32]
    weights: NDArray[np.int32]
    rows: list[tuple[NDArray[np.int32], NDArray[np.int32]]]


@dataclass(frozen=True, slots=True)
class DraftCapacity:
    """The most that a plan can hold: sessions, entries of a row, numbers of the packed batch."""

    rows: int
    room: int
    numbers: int


class DraftPlan:
    """Buffers for one head on one device. `columns`: how many of the logits count; `token_map` `[W]` int64 or None.

    Raises ValueError as `chunks_of` does.
    """

    def __init__(
        self,
        device: torch.device,
        columns: int,
        capacity: DraftCapacity,
        token_map: Tensor | None = None,
        tuning: DraftTuning | None = None,
    ) -> None:
        self.columns, self.capacity, self.token_map = columns, capacity, token_map
        self.tuning = tuning or DraftTuning()
        self.num_chunks = chunks_of(columns, self.tuning.chunk)
        self.group = group_of(self.num_chunks * self.tuning.chunk, self.tuning.group, self.tuning.max_groups)
        self.num_groups = self.num_chunks * self.tuning.chunk // self.group
        self._early = launches_early(device)
        rows = capacity.rows

        def ints(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._numbers = Numbers(capacity.numbers, device)
        self._partials = ints(rows, self.num_chunks, fields.PARTIAL_FIELDS.value, dtype=torch.float32)
        self._masses = ints(rows, self.num_chunks, dtype=torch.int64)
        self._groups = ints(rows, self.num_groups, dtype=torch.float32)
        self._chosen = ints(rows, self.num_groups)
        self._listed = ints(rows, columns, dtype=torch.int64)
        self._out = ints(rows * (fields.DRAFT_FIELDS.value + 2 * capacity.room))

    def load(self, inputs: Sequence[DraftInput]) -> DraftForm:
        """Send a batch's numbers, biases and counts by column; does not wait for the device."""
        numbers, form = pack_rows(inputs, self.columns, self.capacity.rows)
        self.send(numbers)
        return form

    def send(self, numbers: NDArray[np.int32]) -> None:
        """One copy; does not wait for the device."""
        self._numbers.send(numbers)

    def launch(self, logits: Tensor, form: DraftForm) -> None:
        """`launches` on the current stream, nothing else."""
        for launch in self.launches(logits, form):
            launch.run()

    def launches(self, logits: Tensor, form: DraftForm) -> list[Launch]:
        """Three, in order."""
        tuning, chunks, groups = self.tuning, self.num_chunks, self.num_groups
        shared = (
            logits, logits.stride(0), logits.stride(1), self.columns, self._numbers.on_device, self.capacity.rows,
            self._partials,
        )  # fmt: skip
        # What rounding sees is the reference's: products and sums apart.
        cut: dict[str, int] = {"ADJUST": form.adjust, "EARLY": self._early, "enable_fp_fusion": False}
        if self._early:
            cut["launch_pdl"] = True
        by_chunk = {**cut, "CHUNK": tuning.chunk, "num_warps": tuning.chunk_warps}
        chunk_tile = {"CHUNKS": triton.next_power_of_2(chunks)}
        by_row = {
            **cut, **chunk_tile, "GROUP": self.group, "GROUPS": triton.next_power_of_2(groups),
            "MAP": self.token_map is not None, "num_warps": tuning.row_warps,
        }  # fmt: skip
        room = (
            self._masses, self._groups, self._chosen, self._listed,
            self._numbers.on_device if self.token_map is None else self.token_map, self._out, chunks, groups, form.room,
        )  # fmt: skip
        grid = (chunks, form.rows)
        return [
            Launch(pass_one, grid, (*shared, self._groups, chunks, groups), {**by_chunk, "GROUP": self.group,
                   "TRUNCATE": True}),
            Launch(row_units, grid, (*shared, self._masses, chunks), {**by_chunk, **chunk_tile}),
            Launch(draft_row, (form.rows,), (*shared, *room), by_row),
        ]  # fmt: skip

    def fetch(self, form: DraftForm) -> DrawnRows:
        """One copy; waits for the device."""
        width = fields.DRAFT_FIELDS.value + 2 * form.room
        out = self._out[: form.rows * width].cpu().numpy().reshape(form.rows, width)
        finite = out[:, fields.DRAFT_FINITE.value] != 0
        ids = out[:, fields.DRAFT_FIELDS.value :]
        sizes = np.where(finite, out[:, fields.DRAFT_SIZE.value], 0).tolist()
        rows = [(ids[i, :size], ids[i, form.room : form.room + size]) for i, size in enumerate(sizes)]
        return DrawnRows(finite, out[:, fields.DRAFT_TOKEN.value], out[:, fields.DRAFT_WEIGHT.value], rows)


def pack_rows(inputs: Sequence[DraftInput], columns: int, max_rows: int) -> tuple[NDArray[np.int32], DraftForm]:
    """The numbers of a batch, as those of steps that verify nothing, and what a row needs beside."""
    steps = [VerifyInput(i.block_start, [], [], i.sampling, Rule.TOKEN, i.key, i.token_counts) for i in inputs]
    packed = pack(steps, columns, max_rows)
    size = fields.SESSION_FIELDS.value
    table = packed.numbers[max_rows : max_rows + len(inputs) * size].reshape(len(inputs), size)
    max_row = np.clip([item.max_row for item in inputs], 1, MAX_ROW)
    table[:, fields.DRAFT_OFFSET.value] = [item.offset for item in inputs]
    table[:, fields.MAX_ROW.value] = max_row
    table[:, fields.ROW_MASS.value] = np.array([i.row_mass for i in inputs], dtype=np.float32).view(np.int32)
    table[:, fields.TRUNCATED.value] = 1  # every row needs its groups' maxima
    return packed.numbers, DraftForm(len(inputs), int(min(max_row.max(), columns)), packed.adjust)

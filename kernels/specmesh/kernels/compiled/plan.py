"""Memory and launches of `verify`: all that a call needs is there before, so a call can be captured in a CUDA graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from specmesh.kernels.compiled import fields
from specmesh.kernels.compiled.accept import accept
from specmesh.kernels.compiled.buffers import Numbers, chunks_of, group_of
from specmesh.kernels.compiled.forms import Form, Tuning, form_of
from specmesh.kernels.compiled.launching import Launch, launches_early
from specmesh.kernels.compiled.pack import Packed, pack
from specmesh.kernels.compiled.pass_one import pass_one
from specmesh.kernels.compiled.sample import sample
from specmesh.kernels.compiled.threshold import threshold
from specmesh.kernels.inputs import VerifyInput


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most that a plan can hold: rows of logits, sessions, and numbers of the packed batch."""

    rows: int
    sessions: int
    numbers: int

    def holds(self, other: "Capacity") -> bool:
        """Whether a batch of that size fits."""
        return self.rows >= other.rows and self.sessions >= other.sessions and self.numbers >= other.numbers


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a batch came to, `[B]` each and `logprobs` by row of logits; where `finite` is False the rest means nothing.

    The log-probability of a token that launch three drew for session b (`draw_row[b]` >= 0) is `score[b]` less its
    noise.
    """

    num_accepted: NDArray[np.int32]
    next_token: NDArray[np.int32]
    finite: NDArray[np.bool_]
    draw_row: NDArray[np.int32]
    score: NDArray[np.float32]
    logprobs: NDArray[np.float32]


class VerifyPlan:
    """Buffers for one vocabulary on one device. Raises ValueError as `chunks_of` does."""

    def __init__(
        self, device: torch.device, vocabulary_size: int, capacity: Capacity, tuning: Tuning | None = None
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.capacity = capacity
        self.tuning = tuning or Tuning()
        self.chunk = self.tuning.chunk
        self.num_chunks = chunks_of(vocabulary_size, self.chunk)
        self._early = launches_early(device)
        rows, sessions = capacity.rows, capacity.sessions

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self._numbers = Numbers(capacity.numbers, device)
        self._partials = floats(rows, self.num_chunks, fields.PARTIAL_FIELDS.value)
        self.group = group_of(self.num_chunks * self.chunk, self.tuning.group, self.tuning.max_groups)
        self.num_groups = self.num_chunks * self.chunk // self.group
        self._groups = floats(rows, self.num_groups)
        self._chosen = ints(rows, self.num_groups)
        self._candidates = floats(rows, self.tuning.most_candidates, 2)
        self._states = floats(rows, fields.STATE_FIELDS.value)
        self._row_draws = torch.zeros(rows, dtype=torch.int64, device=device)
        self._arrived = ints(sessions)
        # One buffer, so that one copy brings all of it to the host.
        self._result = ints(sessions * (2 + fields.OUT_FIELDS.value) + rows)
        self._drawn = self._result[: 2 * sessions].view(torch.int64)
        self._out = self._result[2 * sessions : -rows]
        self._logprobs = self._result[-rows:].view(torch.float32)

    def load(self, inputs: Sequence[VerifyInput]) -> Form:
        """Send a batch's numbers; does not wait for the device."""
        packed = pack(inputs, self.vocabulary_size, self.capacity.rows)
        self.send(packed)
        return self.form_of(packed)

    def send(self, packed: Packed) -> None:
        """One copy; does not wait for the device."""
        self._numbers.send(packed.numbers)

    def form_of(self, packed: Packed) -> Form:
        """The code that a batch needs."""
        return form_of(packed, self.tuning)

    def launch(self, logits: Tensor, form: Form, token_map: Tensor | None = None) -> None:
        """`launches` on the current stream, nothing else."""
        for launch in self.launches(logits, form, token_map):
            launch.run()

    def launches(self, logits: Tensor, form: Form, token_map: Tensor | None = None) -> list[Launch]:
        """Two or three, in order.

        `token_map` `[V]` int64: the logits' columns are those of a head over these ids; what comes out are columns.
        """
        target = (logits, logits.stride(0), logits.stride(1), self.vocabulary_size)
        meta = (self._numbers.on_device, self.capacity.rows)
        cut: dict[str, int] = {"ADJUST": form.adjust, "EARLY": self._early, "enable_fp_fusion": False}
        if self._early:
            cut["launch_pdl"] = True
        first = Launch(
            pass_one, (self.num_chunks, form.rows),
            (*target, *meta, self._partials, self._groups, self.num_chunks, self.num_groups),
            {"CHUNK": self.chunk, "GROUP": self.group, "TRUNCATE": form.truncate, "num_warps": self.tuning.chunk_warps}
            | cut,
        )  # fmt: skip
        launches = [first, self._decision((*target, *meta, self._partials), form, cut)]
        if not form.greedy:
            launches.append(self._draw((*target, *meta, self._partials), form, token_map, cut))
        return launches

    def _decision(self, shared: tuple[object, ...], form: Form, cut: dict[str, int]) -> Launch:
        tuning, chunks = self.tuning, self.num_chunks
        results = (self._out, self._drawn, self._logprobs)
        cut = {
            **cut, "LP": form.length, "KP": form.row_tile, "LONG": form.long_rows,
            "CHUNKS": triton.next_power_of_2(chunks),
        }  # fmt: skip
        if not form.truncate:
            arguments = (*shared, self._states, self._row_draws, *results, chunks)
            warps = tuning.warps_for_block(form.length, form.row_tile)
            return Launch(accept, (form.sessions,), arguments, {**cut, "num_warps": warps})
        cut |= {
            "GROUP": self.group, "GROUPS": triton.next_power_of_2(self.num_groups), "FEW": tuning.few_candidates,
            "MOST": tuning.most_candidates, "num_warps": tuning.threshold_warps,
        }  # fmt: skip
        room = (self._groups, self._chosen, self._candidates, self._states, self._row_draws, self._arrived)
        return Launch(threshold, (form.rows,), (*shared, *room, *results, chunks, self.num_groups), cut)

    def _draw(self, shared: tuple[object, ...], form: Form, token_map: Tensor | None, cut: dict[str, int]) -> Launch:
        tuning = self.tuning
        items = form.rows if form.by_row else form.sessions
        tiles = triton.cdiv(self.vocabulary_size, form.tile)
        per_program = max(1, tiles * items // tuning.draw_programs)
        arguments = (
            *shared, self._states, self._row_draws, self._arrived, self._out, self._drawn, self._logprobs,
            self._numbers.on_device if token_map is None else token_map, self.num_chunks, per_program,
        )  # fmt: skip
        cut = {
            **cut, "TILE": form.tile, "CHUNK": self.chunk, "LP": max(form.length, tuning.block_rows[1]),
            "KP": tuning.row_tile, "TRUNCATE": form.truncate, "BY_ROW": form.by_row, "MAP": token_map is not None,
            "num_warps": tuning.draw_warps,
        }  # fmt: skip
        if not (form.adjust or form.truncate):
            cut["maxnreg"] = tuning.draw_registers
        return Launch(sample, (triton.cdiv(tiles, per_program), items), arguments, cut)

    def fetch(self, form: Form, beside: Tensor) -> tuple["Outcomes", Tensor]:
        """One copy, of what the batch came to and of these rows of logits `[N, W]`; waits for the device."""
        size = 4 * len(self._result)
        parts = (self._result.view(torch.uint8), beside.contiguous().view(torch.uint8).flatten())
        brought = (torch.cat(parts) if len(beside) else parts[0]).cpu()
        host_rows = brought[size:].view(beside.dtype).view(len(beside), beside.shape[1])
        result = brought[:size].view(torch.int32).numpy()
        sessions, rows = self.capacity.sessions, self.capacity.rows
        drawn = result[: 2 * sessions].view(np.int64)[: form.sessions]
        out = result[2 * sessions : -rows].reshape(-1, fields.OUT_FIELDS.value)[: form.sessions]
        outcomes = Outcomes(
            num_accepted=out[:, fields.ACCEPTED.value],
            next_token=(0x7FFFFFFF - (drawn & 0x7FFFFFFF)).astype(np.int32),
            finite=out[:, fields.ALL_FINITE.value] != 0,
            draw_row=out[:, fields.DRAW_ROW.value],
            score=_floats_in_order((drawn >> 32).astype(np.int32)),
            logprobs=result[-rows:].view(np.float32)[: form.rows],
        )
        return outcomes, host_rows


def _floats_in_order(keys: NDArray[np.int32]) -> NDArray[np.float32]:
    """The floats of which these are the integers in order (`philox.in_order`)."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(np.float32)

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
from specmesh.kernels.compiled.pack import Packed, pack
from specmesh.kernels.compiled.pass_one import pass_one
from specmesh.kernels.compiled.sample import sample
from specmesh.kernels.compiled.threshold import threshold
from specmesh.kernels.inputs import VerifyInput


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the work is cut. What rounding sees follows the vocabulary alone: an outcome must not depend on its batch."""

    chunk: int = 4096
    small_chunk: int = 2048
    """Of vocabularies up to `small_vocabulary`, whose rows have too few chunks to fill a GPU."""
    small_vocabulary: int = 65536
    chunk_warps: int = 4
    accept_warps: int = 4
    draw_tile: int = 1024
    draw_warps: int = 1
    small_draw_tile: int = 512
    """Where programs of launch three would be `few_programs` or less."""
    few_programs: int = 512
    large_draw_tile: int = 2048
    large_draw_warps: int = 2
    """Where all rows are drawn from and the programs would be more than `many_programs`."""
    many_programs: int = 2048
    draw_programs: int = 4224
    """Of launch three, at most about so many: then each takes several tiles, which changes no result."""
    max_row_tile: int = 128
    group: int = 32
    """Ids of which a truncated row keeps one maximum; more of them when the groups would be more than `max_groups`."""
    max_groups: int = 4096
    few_candidates: int = 128
    most_candidates: int = 2048
    threshold_warps: int = 8


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
class Form:
    """What of a batch chooses the compiled code: equal forms, the same code. `rows` and `sessions` are grid sizes;
    `long_rows`: a row is longer than `row_tile`, and what goes on behind it is left out of the code otherwise.
    """

    rows: int
    sessions: int
    length: int
    row_tile: int
    long_rows: bool
    adjust: bool
    truncate: bool
    by_row: bool
    greedy: bool


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
    """Buffers for one vocabulary on one device."""

    def __init__(
        self, device: torch.device, vocabulary_size: int, capacity: Capacity, tuning: Tuning | None = None
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.capacity = capacity
        self.tuning = tuning or Tuning()
        small = vocabulary_size <= self.tuning.small_vocabulary
        self.chunk = min(self.tuning.chunk, self.tuning.small_chunk) if small else self.tuning.chunk
        self.num_chunks = triton.cdiv(vocabulary_size, self.chunk)
        pinned = device.type == "cuda"
        self._early = pinned and torch.cuda.get_device_capability(device) >= (9, 0)
        rows, sessions = capacity.rows, capacity.sessions

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self._host_numbers = torch.zeros(capacity.numbers, dtype=torch.int32, pin_memory=pinned)
        self._numbers = ints(capacity.numbers)
        self._partials = floats(rows, self.num_chunks, fields.PARTIAL_FIELDS.value)
        self.group = self.tuning.group
        while self.num_chunks * self.chunk // self.group > self.tuning.max_groups:
            self.group *= 2
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
        """One copy."""
        size = len(packed.numbers)
        self._host_numbers.numpy()[:size] = packed.numbers
        self._numbers[:size].copy_(self._host_numbers[:size], non_blocking=True)

    def form_of(self, packed: Packed) -> Form:
        """The code that a batch needs."""
        return Form(
            rows=packed.num_rows,
            sessions=packed.num_sessions,
            length=max(triton.next_power_of_2(packed.length + 1), 2),
            row_tile=min(max(triton.next_power_of_2(packed.row_size), 16), self.tuning.max_row_tile),
            long_rows=packed.row_size > self.tuning.max_row_tile,
            adjust=packed.adjust,
            truncate=packed.truncate,
            by_row=packed.coupled,
            greedy=packed.greedy,
        )

    def launch(self, logits: Tensor, form: Form, token_map: Tensor | None = None) -> None:
        """Two or three launches on the current stream, nothing else.

        `token_map` `[V]` int64: the logits' columns are those of a head over these ids; what comes out are columns.
        """
        tuning, chunks = self.tuning, self.num_chunks
        target = (logits, logits.stride(0), logits.stride(1), self.vocabulary_size)
        meta = (self._numbers, self.capacity.rows)
        results = (self._out, self._drawn, self._logprobs)
        early = {"launch_pdl": True} if self._early else {}
        cut: dict[str, int] = {"ADJUST": form.adjust, "EARLY": self._early, "enable_fp_fusion": True}
        pass_one[(chunks, form.rows)](
            *target, *meta, self._partials, self._groups, chunks, self.num_groups,
            CHUNK=self.chunk, GROUP=self.group, TRUNCATE=form.truncate, num_warps=tuning.chunk_warps, **cut,
        )  # fmt: skip
        cut = {**cut, "LP": form.length, "KP": form.row_tile}
        decide = {"CHUNKS": triton.next_power_of_2(chunks), "LONG": form.long_rows}
        if form.truncate:
            threshold[(form.rows,)](
                *target, *meta, self._partials, self._groups, self._chosen, self._candidates, self._states,
                self._row_draws, self._arrived, *results, chunks, self.num_groups, GROUP=self.group,
                GROUPS=triton.next_power_of_2(self.num_groups), FEW=tuning.few_candidates, MOST=tuning.most_candidates,
                num_warps=tuning.threshold_warps, **decide, **cut, **early,
            )  # fmt: skip
        else:
            accept[(form.sessions,)](
                *target, *meta, self._partials, self._states, self._row_draws, *results, chunks,
                num_warps=tuning.accept_warps, **decide, **cut, **early,
            )  # fmt: skip
        if form.greedy:
            return
        items = form.rows if form.by_row else form.sessions
        tile, warps = self.draw_tile(items, form.by_row)
        tiles = triton.cdiv(self.vocabulary_size, tile)
        per_program = max(1, tiles * items // tuning.draw_programs)
        sample[(triton.cdiv(tiles, per_program), items)](
            *target, *meta, self._partials, self._states, self._row_draws, self._arrived, *results,
            self._numbers if token_map is None else token_map, chunks, per_program, TILE=tile,
            CHUNK=self.chunk, TRUNCATE=form.truncate, BY_ROW=form.by_row, MAP=token_map is not None,
            num_warps=warps, **cut, **early,
        )  # fmt: skip

    def draw_tile(self, items: int, by_row: bool) -> tuple[int, int]:
        """(ids at a time, warps) of a program of launch three when so many rows or sessions are drawn from."""
        tuning = self.tuning
        programs = triton.cdiv(self.vocabulary_size, tuning.draw_tile) * items
        if programs <= tuning.few_programs:
            return min(tuning.draw_tile, tuning.small_draw_tile), tuning.draw_warps
        if by_row and programs > tuning.many_programs:
            return min(self.chunk, tuning.large_draw_tile), tuning.large_draw_warps
        return tuning.draw_tile, tuning.draw_warps

    def fetch(self, form: Form) -> "Outcomes":
        """One copy; waits for the device."""
        result = self._result.cpu().numpy()
        sessions, rows = self.capacity.sessions, self.capacity.rows
        drawn = result[: 2 * sessions].view(np.int64)[: form.sessions]
        out = result[2 * sessions : -rows].reshape(-1, fields.OUT_FIELDS.value)[: form.sessions]
        return Outcomes(
            num_accepted=out[:, fields.ACCEPTED.value],
            next_token=(0x7FFFFFFF - (drawn & 0x7FFFFFFF)).astype(np.int32),
            finite=out[:, fields.ALL_FINITE.value] != 0,
            draw_row=out[:, fields.DRAW_ROW.value],
            score=_floats_in_order((drawn >> 32).astype(np.int32)),
            logprobs=result[-rows:].view(np.float32)[: form.rows],
        )


def _floats_in_order(keys: NDArray[np.int32]) -> NDArray[np.float32]:
    """The floats of which these are the integers in order (`philox.in_order`)."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(np.float32)

"""How the work of `verify` is cut, and which code a batch needs: few forms, so that all can be compiled ahead."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import triton

from specmesh.kernels.compiled.pack import Packed


@dataclass(frozen=True, slots=True)
class Tuning:
    """What rounding sees follows the vocabulary alone: an outcome must not depend on its batch."""

    chunk: int = 4096
    chunk_warps: int = 4
    entries_per_warp: int = 512
    """Of blocks and their rows' ids in launch two; at least `accept_warps`."""
    accept_warps: int = 4
    draw_tile: int = 512
    draw_warps: int = 1
    draw_registers: int = 80
    """Of a thread of launch three, at most, where nothing is adjusted or truncated: more programs at a time."""
    cut_draw_tile: int = 1024
    """Where a session is truncated: most tiles are empty then."""
    draw_programs: int = 3168
    """Of launch three, at most about so many: then each takes several tiles, which changes no result."""
    block_rows: tuple[int, ...] = (8, 32, 128)
    """Rows of logits of a batch's longest block: there is code for each of these."""
    row_tile: int = 64
    """Ids of a draft's row at a time, where the rows of a batch are no longer and its blocks are of the shortest."""
    long_row_tile: int = 128
    """Of other batches. Both tiles sum a row up in one order: lane by lane of a warp, which has a row to itself."""
    group: int = 32
    """Ids of which a truncated row keeps one maximum; more of them when the groups would be more than `max_groups`."""
    max_groups: int = 4096
    few_candidates: int = 128
    most_candidates: int = 2048
    threshold_warps: int = 8

    def code_for_block(self, length: int, row_size: int) -> tuple[int, int, bool]:
        """(rows, ids of a draft's row at a time, whether there may be more) for blocks and rows up to these lengths."""
        rows = next((size for size in self.block_rows if size > length), triton.next_power_of_2(length + 1))
        if rows == self.block_rows[0] and row_size <= self.row_tile:
            return rows, self.row_tile, False
        return rows, self.long_row_tile, True

    def tile_for_draw(self, *, truncate: bool) -> int:
        """Ids at a time of launch three; within one chunk."""
        return min(self.chunk, self.cut_draw_tile if truncate else self.draw_tile)

    def warps_for_block(self, length: int, row_tile: int) -> int:
        """Of launch two."""
        return min(max(self.accept_warps, length * row_tile // self.entries_per_warp), 16)


@dataclass(frozen=True, slots=True)
class Form:
    """What of a batch chooses the compiled code: equal but for `rows` and `sessions`, sizes of grids, the same code.

    `long_rows`: a row may be longer than `row_tile`, and what goes on behind it is left out of the code otherwise.
    `tile`: ids at a time of launch three.
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
    tile: int


def form_of(packed: Packed, tuning: Tuning) -> Form:
    """The code that a batch needs."""
    return Form(
        packed.num_rows, packed.num_sessions, *tuning.code_for_block(packed.length, packed.row_size),
        packed.adjust, packed.truncate, packed.coupled, packed.greedy, tuning.tile_for_draw(truncate=packed.truncate),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Requests:
    """What requests may ask for: drafted tokens of a block at most; ids of a draft's row at most; whether blocks come
    with rows, and so are drawn from by session (else all is greedy or COUPLED).
    """

    block_length: int
    row_size: int = 4096
    by_session: bool = True


def all_forms(requests: Requests, tuning: Tuning) -> Iterator[Form]:
    """Every form that a batch of these requests can have, as that of a single row; the longest to compile first."""
    sizes = [(length, size) for length in _lengths(requests, tuning) for size in (tuning.row_tile, requests.row_size)]
    blocks = dict.fromkeys(tuning.code_for_block(*size) for size in sizes)
    draws = (False, True) if requests.by_session else (True,)
    for block, truncate, adjust, by_row in product(reversed(blocks), (True, False), (True, False), draws):
        yield Form(1, 1, *block, adjust, truncate, by_row, False, tuning.tile_for_draw(truncate=truncate))


def _lengths(requests: Requests, tuning: Tuning) -> Sequence[int]:
    """Block lengths that call for different code."""
    return [size - 1 for size in tuning.block_rows if size <= requests.block_length] + [requests.block_length]

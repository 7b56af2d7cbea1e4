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
    draw_tile: int = 1024
    draw_warps: int = 1
    small_draw_tile: int = 512
    """Where programs of launch three would be `few_programs` or less, and nothing is adjusted or truncated."""
    few_programs: int = 512
    draw_programs: int = 4224
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

    def warps_for_block(self, length: int, row_tile: int) -> int:
        """Of launch two."""
        return min(max(self.accept_warps, length * row_tile // self.entries_per_warp), 16)


@dataclass(frozen=True, slots=True)
class Form:
    """What of a batch chooses the compiled code: equal but for `rows` and `sessions`, sizes of grids, the same code.

    `long_rows`: a row may be longer than `row_tile`, and what goes on behind it is left out of the code otherwise.
    `tile`, `warps`: of launch three.
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
    warps: int


def form_of(packed: Packed, vocabulary_size: int, tuning: Tuning) -> Form:
    """The code that a batch needs."""
    plain = not (packed.adjust or packed.truncate)
    items = packed.num_rows if packed.coupled else packed.num_sessions
    tile = draw_tile(items, vocabulary_size, tuning) if plain else None
    return Form(
        packed.num_rows, packed.num_sessions, *tuning.code_for_block(packed.length, packed.row_size),
        packed.adjust, packed.truncate, packed.coupled, packed.greedy,
        *(tile or (tuning.draw_tile, tuning.draw_warps)),
    )  # fmt: skip


def draw_tile(items: int, vocabulary_size: int, tuning: Tuning) -> tuple[int, int]:
    """(ids at a time, warps) of a program of launch three when so many rows or sessions are drawn from."""
    few = triton.cdiv(vocabulary_size, tuning.draw_tile) * items <= tuning.few_programs
    return min(tuning.draw_tile, tuning.small_draw_tile) if few else tuning.draw_tile, tuning.draw_warps


@dataclass(frozen=True, slots=True)
class Requests:
    """What requests may ask for: drafted tokens of a block and rows of logits of a batch, at most; ids of a draft's row
    at most; whether blocks come with rows, and so are drawn from by session (else all is greedy or COUPLED).
    """

    block_length: int
    rows: int
    row_size: int = 4096
    by_session: bool = True


def all_forms(requests: Requests, vocabulary_size: int, tuning: Tuning) -> Iterator[Form]:
    """Every form that a batch of these requests can have, as that of a single row; the longest to compile first."""
    sizes = [(length, size) for length in _lengths(requests, tuning) for size in (tuning.row_tile, requests.row_size)]
    blocks = dict.fromkeys(tuning.code_for_block(*size) for size in sizes)
    usual = (tuning.draw_tile, tuning.draw_warps)
    for block, truncate, adjust in product(reversed(blocks), (True, False), (True, False)):
        for by_row in (False, True) if requests.by_session else (True,):
            tiles = [usual] if adjust or truncate else _tiles(requests.rows, vocabulary_size, tuning)
            for tile in tiles:
                yield Form(1, 1, *block, adjust, truncate, by_row, False, *tile)


def _lengths(requests: Requests, tuning: Tuning) -> Sequence[int]:
    """Block lengths that call for different code."""
    return [size - 1 for size in tuning.block_rows if size <= requests.block_length] + [requests.block_length]


def _tiles(rows: int, vocabulary_size: int, tuning: Tuning) -> Sequence[tuple[int, int]]:
    """Of batches of up to so many rows."""
    return list(dict.fromkeys(draw_tile(size, vocabulary_size, tuning) for size in (1, rows)))

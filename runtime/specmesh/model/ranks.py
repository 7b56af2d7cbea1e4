"""The processes that share one model (tensor parallelism): how they meet, and what the first tells the others.

rank       one process with its share of every layer's heads and columns; rank 0 is the one that serves
message    what rank 0 broadcasts before it does something that all ranks must do: one int32 tensor, no pickles

A message is [kind, two arguments, number of spans], then for each span [tokens, start, first row, blocks], its tokens
and its blocks. All messages have one size, so that one broadcast is enough; `GROW` says that the next ones are longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from specmesh.model.blocks import blocks_for
from specmesh.model.place import Meeting, Place
from specmesh.model.spans import Span

FIRST_SIZE = 4096
HEADER = 4
FOR_EVER = timedelta(days=365)
"""A rank waits for the next message as long as nobody has a request; watchdogs are elsewhere."""
LOAD_TIMEOUT = timedelta(hours=2)


class Kind(IntEnum):
    """What all ranks are to do."""

    END = 0
    GROW = 1
    ALLOCATE = 2
    WARM_UP = 3
    COPY = 4
    FORWARD = 5


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of one model, met. `control` carries messages, over the CPU."""

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup | None

    def agree(self, value: bool) -> bool:
        """Whether all ranks say so; all must ask."""
        answer = torch.tensor([int(value)])
        dist.all_reduce(answer, dist.ReduceOp.MIN, group=self.control)
        return bool(answer.item())


def join(place: Place, device: str) -> Ranks:
    """Meet the others, without a place for that where torchrun has said where. Blocking; all ranks must call it.

    `device`: `cpu` (gloo) or `cuda` (NCCL, each rank on the device of its local number). Raises RuntimeError.
    """
    own = torch.device(device)
    backend = "gloo"
    if own.type == "cuda":
        own = torch.device("cuda", place.local_rank)
        torch.cuda.set_device(own)
        backend = "nccl"
    timeout = FOR_EVER if backend == "gloo" else LOAD_TIMEOUT
    # One that torch makes itself has another prefix: either all ranks have one of these, or none.
    store = None if place.meeting is None else _store(place, place.meeting)
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=timeout)
    control = None if backend == "gloo" else dist.new_group(backend="gloo", timeout=FOR_EVER)
    return Ranks(place.rank, place.size, own, control)


def _store(place: Place, meeting: Meeting) -> Store:
    listening = None if meeting.listening is None else meeting.listening.fileno()
    return TCPStore(
        meeting.host,
        meeting.port,
        place.size,
        is_master=listening is not None,
        wait_for_workers=False,
        master_listen_fd=listening,
    )


class Share(Protocol):
    """One rank's part of a model, and what all ranks do with theirs together (`specmesh.model.paged.PagedModel`)."""

    vocabulary_size: int
    max_context_tokens: int

    @property
    def bytes_per_block(self) -> int:
        """Bytes of 16 tokens of one session on this rank."""

    def allocate_cache(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks."""

    def warm_up(self, max_rows: int, max_chunk: int) -> None:
        """Record the forwards of ticks."""

    def copy_block(self, source: int, target: int) -> None:
        """Make the block `target` hold what `source` holds."""

    def forward(self, spans: Sequence[Span]) -> Tensor:
        """Feed the spans."""


class Channel:
    """Messages from rank 0 to all others, in order."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._buffer = torch.zeros(FIRST_SIZE, dtype=torch.int32)

    def send(self, kind: Kind, *arguments: int, spans: Sequence[Span] = ()) -> None:
        """By rank 0: one broadcast, or two when the message is longer than any before."""
        message = encode(kind, *arguments, spans=spans)
        if len(message) > len(self._buffer):
            size = 1 << (len(message) - 1).bit_length()
            self._broadcast(encode(Kind.GROW, size))
            self._buffer = torch.zeros(size, dtype=torch.int32)
        self._broadcast(message)

    def receive(self) -> tuple[Kind, tuple[int, int], list[Span]]:
        """By the others: the next message, whenever it comes."""
        dist.broadcast(self._buffer, 0, group=self._ranks.control)
        kind, arguments, spans = decode(self._buffer.numpy())
        if kind is not Kind.GROW:
            return kind, arguments, spans
        self._buffer = torch.zeros(arguments[0], dtype=torch.int32)
        return self.receive()

    def _broadcast(self, message: NDArray[np.int32]) -> None:
        self._buffer[: len(message)] = torch.from_numpy(message)
        dist.broadcast(self._buffer, 0, group=self._ranks.control)


def encode(kind: Kind, first: int = 0, second: int = 0, *, spans: Sequence[Span] = ()) -> NDArray[np.int32]:
    """A message; of a span's block table the blocks that it reaches."""
    parts: list[Sequence[int]] = [(kind, first, second, len(spans))]
    for span in spans:
        blocks = span.block_table[: blocks_for(span.end)]
        parts += [(len(span.token_ids), span.start, span.first_row, len(blocks)), span.token_ids, blocks]
    return np.concatenate([np.asarray(part, np.int32) for part in parts])


def decode(message: NDArray[np.int32]) -> tuple[Kind, tuple[int, int], list[Span]]:
    """What `encode` was given; what follows the message is not looked at."""
    kind, first, second, num_spans = message[:HEADER].tolist()
    spans, at = [], HEADER
    for _ in range(num_spans):
        num_tokens, start, first_row, num_blocks = message[at : at + HEADER].tolist()
        tokens = message[at + HEADER : at + HEADER + num_tokens].tolist()
        at += HEADER + num_tokens
        spans.append(Span(tokens, start, message[at : at + num_blocks].tolist(), first_row))
        at += num_blocks
    return Kind(kind), (first, second), spans


def follow(model: Share, ranks: Ranks) -> None:
    """Do what rank 0 does, until it says that this is the end. What goes wrong ends the rank, and so all of them."""
    channel = Channel(ranks)
    while True:
        kind, arguments, spans = channel.receive()
        if kind is Kind.END:
            return
        if kind is Kind.ALLOCATE:
            model.allocate_cache(arguments[0])
        elif kind is Kind.WARM_UP:
            model.warm_up(*arguments)
        elif kind is Kind.COPY:
            model.copy_block(*arguments)
        else:
            model.forward(spans)

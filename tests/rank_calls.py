"""What two ranks do together, by processes that torchrun has started: `rank_calls.py`, each prints what it was told."""

import json
import os
import sys
from collections.abc import Sequence

import torch

from specmesh.model.place import leave, place_of
from specmesh.model.ranks import follow, join
from specmesh.model.sharded import ShardedModel
from specmesh.model.spans import Span

LONG = Span([5] * 5000, 16, list(range(314)), 4999)
"""Longer than the first message may be."""


class Told:
    """Keeps what it is told to do; computes nothing."""

    vocabulary_size, max_context_tokens, bytes_per_block = 8, 8192, 64

    def __init__(self) -> None:
        self.calls: list[object] = []

    def allocate_cache(self, num_blocks: int) -> None:
        self.calls.append(["allocate_cache", num_blocks])

    def warm_up(self, max_rows: int, max_chunk: int = 0) -> None:
        self.calls.append(["warm_up", max_rows, max_chunk])

    def copy_block(self, source: int, target: int) -> None:
        self.calls.append(["copy_block", source, target])

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        tokens = [[list(span.token_ids), span.start, list(span.block_table), span.first_row] for span in spans]
        self.calls.append(["forward", tokens])
        return torch.zeros(len(spans), 8)


def main() -> None:
    place = place_of(os.environ, 2)
    assert place is not None
    ranks, told = join(place, "cpu"), Told()
    if ranks.rank > 0:
        follow(told, ranks)
    else:
        model = ShardedModel(told, ranks)
        model.allocate_cache(7)
        model.warm_up(512, 256)
        model.warm_up(64)
        model.copy_block(3, 5)
        model.forward([Span([1, 2], 0, [6], 1), LONG])
        model.end()
    sys.stdout.write(json.dumps(told.calls) + "\n")
    sys.stdout.flush()
    leave(0)


if __name__ == "__main__":
    main()

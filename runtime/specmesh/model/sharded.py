"""A model over several ranks, as the engine of rank 0 sees it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from specmesh.model.errors import RanksLost
from specmesh.model.ranks import Channel, Kind, Ranks, Share
from specmesh.model.spans import Span


class ShardedModel:
    """Rank 0's share of a model, which takes the other ranks along: `TargetModel` of the verifier.

    Sizes of the cache are those of one rank. Any failure raises `RanksLost`: ranks that are not at the same point can
    do nothing together any more.
    """

    def __init__(self, model: Share, ranks: Ranks) -> None:
        self.vocabulary_size = model.vocabulary_size
        self.max_context_tokens = model.max_context_tokens
        self._model = model
        self._channel = Channel(ranks)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of 16 tokens of one session on each rank."""
        return self._model.bytes_per_block

    def allocate_cache(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks on every rank."""
        with _together():
            self._channel.send(Kind.ALLOCATE, num_blocks)
            self._model.allocate_cache(num_blocks)

    def warm_up(self, max_rows: int, max_chunk: int = 0) -> None:
        """Record the forwards of ticks, those with a chunk of up to `max_chunk` tokens among them, on every rank."""
        with _together():
            self._channel.send(Kind.WARM_UP, max_rows, max_chunk)
            self._model.warm_up(max_rows, max_chunk)

    def copy_block(self, source: int, target: int) -> None:
        """Make the block `target` hold what `source` holds, on every rank."""
        with _together():
            self._channel.send(Kind.COPY, source, target)
            self._model.copy_block(source, target)

    def forward(self, spans: Sequence[Span]) -> Tensor:
        """Feed the spans; raw logits [R, W] of the rows wanted, whole on rank 0."""
        with _together():
            self._channel.send(Kind.FORWARD, spans=spans)
            return self._model.forward(spans)

    def end(self) -> None:
        """Send the other ranks home; all processes then `leave`."""
        with _together():
            self._channel.send(Kind.END)


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RanksLost("the ranks of the model are not together any more") from error

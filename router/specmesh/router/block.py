"""A block while it arrives (pure): consecutive tokens are kept, and what has arrived can be cut at any moment."""

from dataclasses import dataclass

from specmesh.runtime.types import Block, DraftEndReason


class MalformedAnswer(ValueError):
    """A draft's answer that no honest draft sends. What arrived before it stands."""


@dataclass(frozen=True, slots=True)
class DraftWork:
    """What a draft says of its own time: nanoseconds of the whole batch and the sessions in it."""

    queue_ns: int = 0
    compute_ns: int = 0
    batch_size: int = 1
    predicted: bool = False
    """The block was there before it was asked for."""


NO_WORK = DraftWork()


class ArrivingBlock:
    """Tokens of one block at `position`, at most `length` of them.

    Never dropped because of its values: a block that is late or broken is verified as far as it came
    (specification 1.5, cut, never drop).
    """

    __slots__ = ("delta_guessed", "delta_logprobs", "end_reason", "length", "position", "rows", "token_ids", "work")

    def __init__(self, position: int, length: int) -> None:
        self.position = position
        self.length = length
        self.token_ids: list[int] = []
        self.rows: list[bytes] = []
        self.end_reason: DraftEndReason | None = None
        self.work = NO_WORK
        self.delta_logprobs: tuple[float, ...] = ()
        """When asked for: ln D of the tokens that the context has gained."""
        self.delta_guessed: tuple[bool, ...] = ()
        """Likewise, under COUPLED: would the draft have guessed them."""

    def add(self, offset: int, token_ids: list[int], rows: list[bytes]) -> None:
        """Append what follows. Raises `MalformedAnswer`; nothing of a malformed piece is kept."""
        if offset != len(self.token_ids) or not token_ids:
            raise MalformedAnswer("tokens of a block must follow each other")
        if len(self.token_ids) + len(token_ids) > self.length:
            raise MalformedAnswer(f"more than the {self.length} tokens that were asked for")
        if len(rows) not in (0, len(token_ids)) or (self.token_ids and bool(rows) != bool(self.rows)):
            raise MalformedAnswer("a row for each token of a block, or for none")
        self.token_ids += token_ids
        self.rows += rows

    def end(self, reason: DraftEndReason | None, work: DraftWork) -> None:
        """The draft says that the block is complete."""
        self.end_reason, self.work = reason, work

    def cut(self) -> Block:
        """What has arrived, as a block to verify."""
        return Block(self.position, tuple(self.token_ids), tuple(self.rows))

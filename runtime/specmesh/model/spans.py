"""What a session asks of one ragged forward. No tensors here, so that a table need not import a model's library."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class Span:
    """One session's share of one ragged forward.

    `token_ids` are fed at positions `start`, `start + 1`, ...; `start` tokens are cached already. `block_table` names
    the cache blocks of 16 tokens that cover `start + len(token_ids)` tokens. Logits are wanted for
    `token_ids[first_row:]`; `first_row == len(token_ids)` asks for none.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    first_row: int

    @property
    def end(self) -> int:
        """Tokens cached after the forward."""
        return self.start + len(self.token_ids)

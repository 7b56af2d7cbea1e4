"""Blocks of a paged cache: which are free. No tensors here."""

from collections.abc import Iterable

BLOCK_TOKENS = 16
"""Tokens per cache block (specification 4)."""


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


class BlockAllocator:
    """A free list over blocks 0..num_blocks-1. The block freed last is handed out first: it is warm in the caches."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: must be >= 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._taken: set[int] = set()

    @property
    def available(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks, or None and no change when so many are not free."""
        if count < 0:
            raise ValueError(f"count: must be >= 0, got {count}")
        if count > len(self._free):
            return None
        blocks = [self._free.pop() for _ in range(count)]
        self._taken.update(blocks)
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back. Raises ValueError, and frees nothing, for a block that is not taken or named twice."""
        given = list(blocks)
        if len(set(given)) != len(given) or not self._taken.issuperset(given):
            raise ValueError("blocks: one of them is not taken, or is named twice")
        self._taken.difference_update(given)
        self._free.extend(reversed(given))

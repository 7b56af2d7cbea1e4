"""The cache's blocks, shared between sessions: who holds which, what is in them, which one is given up next. Pure.

table     blocks of one session, the first 16 tokens in the first
committed full block whose tokens are all final: it is known by the digest of its chain, and others may share it
chain     SHA-256 over the salt, then over the digest before and the block's 16 tokens: equal chains mean equal context
spare     block that nobody holds but whose content is still known; the one left longest ago is given up first
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct

from specmesh.model.blocks import BLOCK_TOKENS, blocks_for

Tokens = tuple[int, ...]
Hash = Callable[[bytes], bytes]
NEVER = 1 << 62
_CHAINED = Struct(f"{BLOCK_TOKENS}Q")
"""A block's tokens as the chain holds them."""


def _sha256(content: bytes) -> bytes:
    return sha256(content).digest()


@dataclass(slots=True)
class Table:
    """One session's blocks, in the form that a forward copies; `chain`: the digest before the first block, then that of
    each committed one.
    """

    chain: list[bytes]
    blocks: "array[int]" = field(default_factory=lambda: array("i"))

    @property
    def num_committed(self) -> int:
        """Blocks whose content is final."""
        return len(self.chain) - 1


@dataclass(frozen=True, slots=True)
class Opened:
    """A table, how many tokens of the context are in it already, and a copy (from, to) to make before all else."""

    table: Table
    num_cached: int
    copy: tuple[int, int] | None = None


class BlockPool:
    """Blocks 0..num_blocks-1. A block is free, spare, or held by one table or more."""

    def __init__(self, num_blocks: int, *, sharing: bool = True, hashed: Hash = _sha256) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: must be >= 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self._sharing = sharing
        self._hash = hashed
        self._free = list(range(num_blocks - 1, -1, -1))
        self._spare: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * num_blocks
        self._known: dict[bytes, tuple[int, Tokens]] = {}
        self._digests: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free) + len(self._spare)

    def open(self, salt: bytes, context: Sequence[int], num_tokens: int) -> Opened | None:
        """A table for `num_tokens` tokens that begin with `context`; None and no change without the memory.

        What is known of the context is shared, but for its last token, which is always fed: where that lies in a
        block that could be shared, the block is copied.
        """
        table = Table([self._hash(b"salt" + salt)])
        found = self._find(table.chain[0], context)
        needed = blocks_for(num_tokens)
        whole = len(found) * BLOCK_TOKENS == len(context)
        if whole and found:
            opened = self._open_copying(table, found, needed)
            if opened is not None:
                return opened
            found.pop()
        self._hold([block for block, _ in found])
        fresh = self._take(needed - len(found))
        if fresh is None:
            self._release([block for block, _ in found])
            return None
        table.blocks.extend([block for block, _ in found] + fresh)
        table.chain += [digest for _, digest in found]
        return Opened(table, len(found) * BLOCK_TOKENS)

    def _open_copying(self, table: Table, found: Sequence[tuple[int, bytes]], needed: int) -> Opened | None:
        """All of the context is known: its last block, which is written to, becomes the session's own."""
        blocks = [block for block, _ in found]
        self._hold(blocks)
        fresh = self._take(needed - len(blocks) + 1)
        self._release(blocks[-1:] if fresh is not None else blocks)
        if fresh is None:
            return None
        table.blocks.extend(blocks[:-1] + fresh)
        table.chain += [digest for _, digest in found[:-1]]
        return Opened(table, len(blocks) * BLOCK_TOKENS - 1, (blocks[-1], fresh[0]))

    def grow(self, table: Table, num_tokens: int) -> bool:
        """Make room for `num_tokens` in all; False and no change without the memory."""
        if num_tokens <= len(table.blocks) * BLOCK_TOKENS:
            return True
        fresh = self._take(blocks_for(num_tokens) - len(table.blocks))
        if fresh is None:
            return False
        table.blocks.extend(fresh)
        return True

    def commit(self, table: Table, context: Sequence[int], num_cached: int) -> int:
        """The first `num_cached` tokens of `context` are final and in the cache: others may share its full blocks.

        Returns with how many tokens the next block will be full; without sharing none ever is.
        """
        if not self._sharing:
            return NEVER
        chain = table.chain
        for end in range(len(chain) * BLOCK_TOKENS, num_cached + 1, BLOCK_TOKENS):
            tokens = tuple(context[end - BLOCK_TOKENS : end])
            digest = self._digest(chain[-1], tokens)
            if digest not in self._known:
                block = table.blocks[len(chain) - 1]
                self._known[digest] = block, tokens
                self._digests[block] = digest
            chain.append(digest)
        return len(chain) * BLOCK_TOKENS

    def roll_back(self, table: Table, num_tokens: int) -> None:
        """Give back the blocks beyond `num_tokens`, none of them committed."""
        kept = max(blocks_for(num_tokens), table.num_committed)
        self._release(table.blocks[kept:])
        del table.blocks[kept:]

    def close(self, table: Table, *, forget: bool = False) -> None:
        """Give all back. `forget`: nobody shall share its content any more."""
        if forget:
            for block in table.blocks:
                self._forget(block)
        self._release(table.blocks)
        del table.blocks[:]

    def _find(self, digest: bytes, context: Sequence[int]) -> list[tuple[int, bytes]]:
        """Known blocks from the context's beginning on, with their digests; tokens are compared, not digests alone."""
        found: list[tuple[int, bytes]] = []
        for start in range(0, len(context) - BLOCK_TOKENS + 1, BLOCK_TOKENS) if self._sharing else ():
            tokens = tuple(context[start : start + BLOCK_TOKENS])
            digest = self._digest(digest, tokens)
            block, known = self._known.get(digest, (-1, ()))
            if known != tokens:
                break
            found.append((block, digest))
        return found

    def _digest(self, before: bytes, tokens: Tokens) -> bytes:
        return self._hash(before + _CHAINED.pack(*tokens))

    def _take(self, count: int) -> list[int] | None:
        """`count` blocks to be held by one table; known content is given up last."""
        free = self._free
        if count > len(free) and not self._unlearn_spare(count - len(free)):
            return None
        blocks = [free.pop() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def _unlearn_spare(self, count: int) -> bool:
        """Free so many blocks whose content is known, those left longest ago; False and no change without as many."""
        if count > len(self._spare):
            return False
        blocks = [self._spare.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._unlearn(block)
        self._free[:0] = reversed(blocks)
        return True

    def _hold(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._holders[block] += 1
            self._spare.pop(block, None)

    def _release(self, blocks: Sequence[int]) -> None:
        """One holder less; the last of these are given up first, for a chain is found from its beginning."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0 and block in self._digests:
                self._spare[block] = None
            elif self._holders[block] == 0:
                self._free.append(block)

    def _forget(self, block: int) -> None:
        if block in self._digests:
            self._unlearn(block)
            if self._spare.pop(block, 0) is None:
                self._free.append(block)

    def _unlearn(self, block: int) -> None:
        del self._known[self._digests.pop(block)]

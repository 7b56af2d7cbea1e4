"""KV caches by session: how much each holds, in which blocks; the least recently used go when room is needed."""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from specmesh.model.blocks import BlockAllocator, blocks_for


@dataclass(slots=True)
class KvCache:
    """One session's: `length` tokens are cached, in `blocks`."""

    length: int = 0
    blocks: list[int] = field(default_factory=list)


class KvCaches:
    """All sessions' caches over one pool of blocks."""

    def __init__(self, num_blocks: int) -> None:
        self._allocator = BlockAllocator(num_blocks)
        self._caches: OrderedDict[int, KvCache] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that no session holds."""
        return self._allocator.available

    def length(self, session_id: int) -> int:
        """Tokens cached; 0 for a session without a cache."""
        cache = self._caches.get(session_id)
        return 0 if cache is None else cache.length

    def reserve(self, session_id: int, num_tokens: int, keep: Collection[int]) -> KvCache | None:
        """The session's cache with room for `num_tokens`; None when even without all caches but `keep` there is none.

        The session is the most recently used one now.
        """
        cache = self._caches.setdefault(session_id, KvCache())
        self._caches.move_to_end(session_id)
        missing = blocks_for(num_tokens) - len(cache.blocks)
        if missing > 0:
            self._make_room(missing, keep)
            blocks = self._allocator.allocate(missing)
            if blocks is None:
                return None
            cache.blocks += blocks
        return cache

    def truncate(self, session_id: int, length: int) -> None:
        """Tokens beyond `length` are no more; blocks beyond them are free again."""
        cache = self._caches.get(session_id)
        if cache is not None and cache.length > length:
            cache.length = length
            spare = cache.blocks[blocks_for(length) :]
            del cache.blocks[blocks_for(length) :]
            self._allocator.free(spare)

    def release(self, session_id: int) -> None:
        """Forget a session; unknown ones are fine."""
        cache = self._caches.pop(session_id, None)
        if cache is not None:
            self._allocator.free(cache.blocks)

    def _make_room(self, num_blocks: int, keep: Collection[int]) -> None:
        for session_id in list(self._caches):
            if self._allocator.available >= num_blocks:
                return
            if session_id not in keep:
                self.release(session_id)

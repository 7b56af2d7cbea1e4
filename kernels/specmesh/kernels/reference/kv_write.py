"""Write the keys and values of a ragged batch into the paged cache."""

from torch import Tensor


def kv_write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store one layer's keys and values, in place.

    `key` [N, K, D] and `value` [N, K, Dv] are the flat ragged row; `key_cache` [blocks, 16, K, D] and `value_cache`
    [blocks, 16, K, Dv] the layer's cache; `slots` [S] int64 the place (block * 16 + offset) of each of the first
    S <= N tokens. Tokens after those are padding and are not written.
    """
    count = slots.shape[0]
    key_cache.flatten(0, 1).index_copy_(0, slots, key[:count])
    value_cache.flatten(0, 1).index_copy_(0, slots, value[:count])

"""Write the keys and values of a ragged batch into the paged cache. Counterpart of `reference.kv_write`."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, N803

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _copy_token(
    source, cache, token, place, source_stride, head_stride, column_stride, cache_stride, HEADS: tl.constexpr,
    SIZE: tl.constexpr, HEADS_P: tl.constexpr, SIZE_P: tl.constexpr,
):  # fmt: skip
    """All heads of one token to one place of a contiguous cache."""
    heads = tl.arange(0, HEADS_P)[:, None]
    columns = tl.arange(0, SIZE_P)[None, :]
    mask = (heads < HEADS) & (columns < SIZE)
    from_ = source + token * source_stride + heads * head_stride + columns * column_stride
    to = cache + place * cache_stride + heads * SIZE + columns
    tl.store(to, tl.load(from_, mask=mask), mask=mask)


@triton.jit
def _write(
    key, value, key_cache, value_cache, slots, key_row, key_head, key_column, value_row, value_head, value_column,
    HEADS: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, HEADS_P: tl.constexpr,
    KEY_P: tl.constexpr, VALUE_P: tl.constexpr,
):  # fmt: skip
    """Program (token); a place below 0 is padding."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(slots + token)
    if place >= 0:
        _copy_token(
            key, key_cache, token, place, key_row, key_head, key_column, HEADS * KEY_SIZE, HEADS, KEY_SIZE, HEADS_P,
            KEY_P,
        )  # fmt: skip
        _copy_token(
            value, value_cache, token, place, value_row, value_head, value_column, HEADS * VALUE_SIZE, HEADS,
            VALUE_SIZE, HEADS_P, VALUE_P,
        )  # fmt: skip


def kv_write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store one layer's keys and values, in place; arguments as `reference.kv_write.kv_write`.

    The caches are contiguous; `key` and `value` may have any strides. A slot below 0 is padding and not written.
    """
    heads, key_size, value_size = key.shape[1], key.shape[2], value.shape[2]
    if slots.shape[0] == 0:
        return
    _write[(slots.shape[0],)](
        key, value, key_cache, value_cache, slots, *key.stride(), *value.stride(), heads, key_size, value_size,
        triton.next_power_of_2(heads), triton.next_power_of_2(key_size), triton.next_power_of_2(value_size),
    )  # fmt: skip

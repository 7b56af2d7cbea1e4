"""The block allocator never hands a block to two holders and never loses one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.model.blocks import BLOCK_TOKENS, BlockAllocator, blocks_for


@given(num_blocks=st.integers(1, 40), actions=st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
def test_blocks_are_neither_shared_nor_lost(num_blocks: int, actions: list[tuple[bool, int]]) -> None:
    allocator = BlockAllocator(num_blocks)
    held: list[list[int]] = []
    for allocate, number in actions:
        if allocate:
            blocks = allocator.allocate(number)
            in_use = sum(map(len, held))
            assert (blocks is None) == (number > num_blocks - in_use)
            held += [blocks] if blocks is not None else []
        elif held:
            allocator.free(held.pop(number % len(held)))
        everything = [block for blocks in held for block in blocks]
        assert len(set(everything)) == len(everything)
        assert all(0 <= block < num_blocks for block in everything)
        assert allocator.available == num_blocks - len(everything)


@pytest.mark.parametrize("blocks", [[3], [0, 0], [0, 1], [-1]])
def test_a_wrong_free_is_refused_and_changes_nothing(blocks: list[int]) -> None:
    allocator = BlockAllocator(4)
    assert allocator.allocate(1) == [0]
    with pytest.raises(ValueError, match="not taken"):
        allocator.free(blocks)
    assert allocator.available == 3


def test_a_block_is_freed_once() -> None:
    allocator = BlockAllocator(2)
    blocks = allocator.allocate(2)
    assert blocks is not None
    allocator.free(blocks)
    with pytest.raises(ValueError, match="not taken"):
        allocator.free(blocks)


def test_numbers_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        BlockAllocator(0)
    with pytest.raises(ValueError, match="count"):
        BlockAllocator(1).allocate(-1)


@given(num_tokens=st.integers(0, 10_000))
def test_blocks_for_is_the_least_that_suffices(num_tokens: int) -> None:
    blocks = blocks_for(num_tokens)
    assert blocks * BLOCK_TOKENS >= num_tokens > (blocks - 1) * BLOCK_TOKENS

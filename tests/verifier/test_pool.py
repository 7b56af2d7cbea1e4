"""The pool of blocks: nothing is leaked, shared wrongly or written under another's feet, whatever sessions do."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from specmesh.model.blocks import BLOCK_TOKENS, blocks_for
from specmesh.verifier.pool import BlockPool, Table

PREFIXES = [[7] * 64, [7] * 32 + [8] * 32, list(range(64))]


class Holder:
    """A session: its table and context; `written`: tokens of its context that it has put into the cache."""

    def __init__(self, table: Table, salt: bytes, context: list[int], written: int) -> None:
        self.table, self.salt, self.context, self.written = table, salt, context, written


class PoolMachine(RuleBasedStateMachine):
    """Beside the pool a cache of (salt, tokens so far) per slot: what a slot would hold in a real one."""

    holders = Bundle("holders")

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        self.open_now: list[Holder] = []

    def slot(self, holder: Holder, position: int) -> int:
        return holder.table.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS

    def write(self, holder: Holder, tokens: Sequence[int], start: int) -> None:
        """As a forward does: what was before in this session, and these tokens."""
        whole = holder.context[:start] + list(tokens)
        for position in range(start, len(whole)):
            assert sum(holder.table.blocks[position // BLOCK_TOKENS] in h.table.blocks for h in self.open_now) == 1, (
                "a block that another session holds is written to"
            )
            self.cache[self.slot(holder, position)] = holder.salt, tuple(whole[: position + 1])

    @rule(
        target=holders, salt=st.sampled_from([b"", b"a"]), prefix=st.sampled_from(PREFIXES),
        length=st.one_of(st.integers(1, 64), st.sampled_from([16, 32, 48, 64])), room=st.integers(1, 40),
    )  # fmt: skip
    def open(self, salt: bytes, prefix: list[int], length: int, room: int) -> object:
        context = prefix[:length]
        free = self.pool.available
        opened = self.pool.open(salt, context, length + room)
        if opened is None:
            assert free == self.pool.available
            assert free < blocks_for(length + room)
            return multiple()
        assert opened.num_cached < length
        if opened.copy is not None:
            source, target = opened.copy
            for offset in range(BLOCK_TOKENS):
                self.cache[target * BLOCK_TOKENS + offset] = self.cache[source * BLOCK_TOKENS + offset]
        holder = Holder(opened.table, salt, list(context), opened.num_cached)
        self.open_now.append(holder)
        return holder

    @rule(holder=holders, count=st.integers(1, 40))
    def prefill(self, holder: Holder, count: int) -> None:
        if holder not in self.open_now:
            return
        end = min(holder.written + count, len(holder.context) - 1)
        self.write(holder, holder.context[holder.written : end], holder.written)
        holder.written = max(end, holder.written)
        self.pool.commit(holder.table, holder.context, holder.written)

    @rule(holder=holders, drafted=st.lists(st.integers(0, 3), max_size=20), kept=st.integers(0, 20))
    def step(self, holder: Holder, drafted: list[int], kept: int) -> None:
        """Verify a block: some tokens are kept, one is emitted, the rest is rolled back."""
        if holder not in self.open_now or holder.written != len(holder.context) - 1:
            return
        if not self.pool.grow(holder.table, len(holder.context) + len(drafted)):
            return
        self.write(holder, [holder.context[-1], *drafted], holder.written)
        holder.context += [*drafted[:kept], 9]
        holder.written = len(holder.context) - 1
        self.pool.commit(holder.table, holder.context, holder.written)
        self.pool.roll_back(holder.table, len(holder.context))

    @rule(holder=consumes(holders), forget=st.booleans())
    def close(self, holder: Holder, forget: bool) -> None:
        if holder in self.open_now:
            self.open_now.remove(holder)
            self.pool.close(holder.table, forget=forget)

    @invariant()
    def nothing_is_leaked(self) -> None:
        if not hasattr(self, "pool"):
            return
        held = {block for holder in self.open_now for block in holder.table.blocks}
        assert self.pool.available == self.pool.num_blocks - len(held)

    @invariant()
    def everybody_sees_its_own_context(self) -> None:
        for holder in getattr(self, "open_now", []):
            assert len(set(holder.table.blocks)) == len(holder.table.blocks)
            for position in range(holder.written):
                expected = holder.salt, tuple(holder.context[: position + 1])
                assert self.cache[self.slot(holder, position)] == expected

    def teardown(self) -> None:
        for holder in getattr(self, "open_now", []):
            self.pool.close(holder.table)
        if hasattr(self, "pool"):
            assert self.pool.available == self.pool.num_blocks
            assert self.pool.open(b"z", [1], self.pool.num_blocks * BLOCK_TOKENS) is not None


TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def fed(pool: BlockPool, context: list[int], salt: bytes = b"") -> Table:
    """A session that has put its whole context into the cache, and is still open."""
    opened = pool.open(salt, context, len(context) + 1)
    assert opened is not None
    pool.commit(opened.table, context, len(context))
    return opened.table


def cached(pool: BlockPool, context: list[int], salt: bytes = b"") -> int:
    """Tokens that a session with that context finds; it is closed again."""
    opened = pool.open(salt, context, len(context) + 1)
    assert opened is not None
    pool.close(opened.table)
    return opened.num_cached


def test_full_blocks_are_found_while_and_after_they_are_held() -> None:
    pool = BlockPool(20)
    table = fed(pool, [1] * 40)
    assert [cached(pool, [1] * n) for n in (15, 16, 17, 32, 33, 40, 50)] == [0, 15, 16, 31, 32, 32, 32]
    pool.close(table)
    assert cached(pool, [1] * 40) == 32
    assert cached(pool, [1] * 16 + [2] * 24) == 16
    assert cached(pool, [2] * 16 + [1] * 24) == 0


def test_two_sessions_hold_one_block_and_it_counts_once() -> None:
    pool = BlockPool(20)
    first = fed(pool, [1] * 40)
    second = pool.open(b"", [1] * 40, 41)
    assert second is not None
    assert second.table.blocks[:2] == first.blocks[:2]
    assert second.table.blocks[2] != first.blocks[2]
    assert pool.available == 20 - 4


def test_another_tenant_finds_nothing() -> None:
    pool = BlockPool(20)
    fed(pool, [1] * 40, b"one")
    assert cached(pool, [1] * 40, b"one") == 32
    assert cached(pool, [1] * 40, b"two") == 0
    assert cached(pool, [1] * 40) == 0


def test_tokens_are_compared_and_not_digests_alone() -> None:
    """A hash under which all is equal: the first block's tokens still decide."""
    pool = BlockPool(20, hashed=lambda content: b"same")
    fed(pool, [1] * 40)
    assert cached(pool, [2] * 40) == 0
    assert cached(pool, [1] * 17) == 16


def test_what_is_forgotten_is_not_found() -> None:
    pool = BlockPool(20)
    table, other = fed(pool, [1] * 40), fed(pool, [1] * 40)
    pool.close(table, forget=True)
    assert cached(pool, [1] * 40) == 0
    pool.close(other)
    assert pool.available == 20


@pytest.mark.parametrize(("token", "num_found"), [(1, 16), (2, 32)])
def test_spare_blocks_are_given_up_oldest_first_and_tails_before_heads(token: int, num_found: int) -> None:
    pool = BlockPool(6)
    pool.close(fed(pool, [1] * 32))
    pool.close(fed(pool, [2] * 32))
    assert pool.available == 6
    assert pool.open(b"", [3], 16 * 3) is not None  # two that were free, and one that was spare
    assert cached(pool, [token] * 33) == num_found


def test_a_context_that_fills_the_pool_is_served_also_when_all_of_it_is_known() -> None:
    """There is no block left to copy the last one into: it is given up and computed again."""
    pool = BlockPool(2)
    first = pool.open(b"", [1] * 32, 32)
    assert first is not None
    pool.commit(first.table, [1] * 32, 32)
    pool.close(first.table)
    opened = pool.open(b"", [1] * 32, 32)
    assert opened is not None
    assert (opened.num_cached, opened.copy) == (16, None)


def test_without_sharing_nothing_is_found() -> None:
    pool = BlockPool(20, sharing=False)
    fed(pool, [1] * 40)
    assert cached(pool, [1] * 40) == 0


def test_no_blocks_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        BlockPool(0)

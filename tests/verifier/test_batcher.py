"""Who takes part in a tick: bounded, nobody starves, a long prompt does not stop the others."""

from hypothesis import given
from hypothesis import strategies as st
from verifier_parts import Collector, make_spec

from specmesh.verifier.backend import Work
from specmesh.verifier.batcher import TickLimits, plan
from specmesh.verifier.session import Entry, Session

STREAM = Collector()


def num_context(work: Work) -> int:
    """Tokens of the context that it feeds."""
    return len(work.token_ids) - (0 if work.verify is None else len(work.verify.draft_token_ids))


def shares(pending: list[Session], prefilling: list[Session], limits: TickLimits) -> list[tuple[Session, int, bool]]:
    """Who takes part, with how many tokens of context, and whether a block is verified."""
    return [(work.session, num_context(work), work.verify is not None) for work in plan(pending, prefilling, limits)]


def session(context_length: int, *, cached: int = 0, block_length: int | None = None) -> Session:
    """With `block_length` it has an entry."""
    live = Session(make_spec([0] * context_length), max_context_tokens=100_000, now_ns=0)
    live.prefilled(cached)
    if block_length is not None:
        live.take(Entry(STREAM, context_length, (0,) * block_length, (), None, 0))
    return live


def idle_step(block_length: int) -> Session:
    """A session between two steps that has a block to verify."""
    return session(20, cached=19, block_length=block_length)


def test_all_that_are_ready_share_one_tick() -> None:
    steps = [idle_step(length) for length in (0, 4, 8)]
    assert shares(steps, [], TickLimits(100, 100)) == [(live, 1, True) for live in steps]


def test_a_long_prompt_gets_a_chunk_while_the_others_get_their_tokens() -> None:
    step, prompt = idle_step(4), session(5000)
    assert shares([step], [prompt], TickLimits(100, 256)) == [(step, 1, True), (prompt, 256, False)]


def test_a_prompt_of_4000_tokens_delays_nobody_by_more_than_a_chunk() -> None:
    """Eight sessions get their tokens in every tick until it is in the cache; none holds more than one chunk of it."""
    steps, prompt, limits = [idle_step(4) for _ in range(8)], session(4000), TickLimits(512, 256)
    ticks = 0
    while prompt.uncached > 1:
        found = shares(steps, [prompt], limits)
        assert [share for share in found if share[2]] == [(live, 1, True) for live in steps]
        fed = sum(num_tokens for _, num_tokens, verify in found if not verify)
        assert 0 < fed <= 256
        prompt.prefilled(fed)
        ticks += 1
    assert ticks == 16


def test_a_prompt_with_an_entry_verifies_in_the_tick_of_its_last_chunk() -> None:
    prompt = session(300, cached=256, block_length=2)
    assert shares([prompt], [prompt], TickLimits(100, 256)) == [(prompt, 44, True)]
    long = session(600, block_length=2)
    assert shares([long], [long], TickLimits(100, 256)) == [(long, 256, False)]


def test_a_prompt_without_an_entry_stops_one_token_before_its_end() -> None:
    prompt = session(10)
    assert shares([], [prompt], TickLimits(100, 256)) == [(prompt, 9, False)]


def test_prompts_share_the_budget_in_order() -> None:
    first, second, third = session(101), session(301), session(301)
    found = shares([], [first, second, third], TickLimits(100, 256))
    assert found == [(first, 100, False), (second, 156, False)]


def test_what_does_not_fit_a_tick_goes_into_the_next_longest_waiting_first() -> None:
    steps = [idle_step(7) for _ in range(4)]
    first = plan(steps, [], TickLimits(20, 100))
    assert [work.session for work in first] == steps[:2]
    assert [work.session for work in plan(steps[2:], [], TickLimits(20, 100))] == steps[2:]


SESSIONS = st.lists(
    st.tuples(st.integers(1, 900), st.floats(0, 1), st.none() | st.integers(0, 16)), min_size=1, max_size=30
)


@given(shapes=SESSIONS, max_rows=st.integers(17, 60), max_tokens=st.integers(1, 300))
def test_a_tick_is_bounded_and_serves_someone(
    shapes: list[tuple[int, float, int | None]], max_rows: int, max_tokens: int
) -> None:
    lives = [session(n, cached=int(part * (n - 1)), block_length=block) for n, part, block in shapes]
    pending = [live for live in lives if live.entry is not None]
    prefilling = [live for live in lives if live.uncached > 1]
    batch = plan(pending, prefilling, TickLimits(max_rows, max_tokens))
    assert len({id(work.session) for work in batch}) == len(batch)
    assert bool(batch) == bool(pending or prefilling)
    blocks = [work.verify for work in batch if work.verify is not None]
    assert sum(1 + len(block.draft_token_ids) for block in blocks) <= max_rows
    assert sum(num_context(work) - (work.verify is not None) for work in batch) <= max_tokens
    for work in batch:
        assert 0 < num_context(work) <= work.session.uncached
        assert (num_context(work) == work.session.uncached) == (work.verify is not None)
        assert work.start == work.session.cached


@given(shapes=SESSIONS, max_tokens=st.integers(1, 300))
def test_every_session_is_served_in_a_bounded_number_of_ticks(
    shapes: list[tuple[int, float, int | None]], max_tokens: int
) -> None:
    """Rotating as the core does: nobody waits longer than it takes to give everyone before it one tick."""
    lives = [session(n, cached=int(part * (n - 1)), block_length=block) for n, part, block in shapes]
    pending = [live for live in lives if live.entry is not None]
    prefilling = [live for live in lives if live.uncached > 1]
    unserved = {*pending, *prefilling}
    for _ in range(2 * len(lives)):
        for served, num_tokens, verify in shares(pending, prefilling, TickLimits(17, max_tokens)):
            unserved.discard(served)
            if verify:
                pending.remove(served)
                served.entry = None
            served.prefilled(num_tokens - verify)
            if served in prefilling:
                prefilling.remove(served)
                prefilling += [served] if served.uncached > 1 else []
    assert not unserved

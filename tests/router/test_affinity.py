"""Sessions go to the verifier that may hold their beginning in its prefix cache."""

from router_fakes import FakeVerifier
from router_parts import INFO, make_session
from router_verifiers import deadline, verifiers_of

from specmesh.router.affinity import PrefixAffinity
from specmesh.router.session import Session

PROMPT = [n % 50 for n in range(200)]


def test_the_longest_beginning_counts_and_the_latest_one_who_had_it() -> None:
    affinity = PrefixAffinity()
    affinity.note("one", b"", PROMPT)
    affinity.note("two", b"", PROMPT[:64])
    assert affinity.find(b"", PROMPT) == "one"
    assert affinity.find(b"", PROMPT[:100]) == "two"
    assert affinity.find(b"", [*PROMPT[:128], 99, *PROMPT]) == "one"
    assert affinity.find(b"", PROMPT[:63]) is None
    assert affinity.find(b"x", PROMPT) is None
    assert affinity.find(b"", [99, *PROMPT]) is None


def test_the_oldest_beginnings_are_forgotten() -> None:
    affinity = PrefixAffinity(max_prefixes=4)
    affinity.note("one", b"", [1] * 64)
    affinity.note("two", b"", [2] * 128)
    affinity.note("one", b"", [1] * 64)
    affinity.note("three", b"", [3] * 128)
    assert [affinity.find(b"", [token] * 64) for token in (1, 2, 3)] == ["one", None, "three"]


async def test_a_session_goes_where_its_beginning_was_seen_unless_that_is_busier() -> None:
    """Apart by caller, as the cache is; a conversation that goes on begins with what was generated."""
    fakes = [FakeVerifier(INFO), FakeVerifier(INFO)]
    async with verifiers_of(*fakes, sessions={"prefix_slack": 2}) as (verifiers, _):
        prompt = tuple(n % 50 for n in range(200))

        async def opened(prompt: tuple[int, ...], number: int, caller: bytes = b"a") -> int:
            session = make_session(prompt=prompt, cache_salt=caller, max_output_tokens=1000)
            session.session_id = number
            before = [len(fake.opened) for fake in fakes]
            await verifiers.open(session, deadline())
            sessions.append(session)
            return [len(fake.opened) - old for fake, old in zip(fakes, before, strict=True)].index(1)

        sessions: list[Session] = []
        first = await opened(prompt, 0)
        assert await opened(prompt[:150], 1) == first, "128 tokens of it were seen"
        assert await opened((*prompt[:63], 51), 2) != first, "63 are too few"
        assert await opened(prompt, 3, b"b") != first, "another caller's"
        assert await opened((51, *prompt), 4) in (0, 1)
        for session in sessions:
            verifiers.close(session)
        longer = (*prompt, *[7] * 100)
        assert [await opened(longer, 10 + number) for number in range(4)] == [first, first, first, 1 - first]

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest
from router_parts import INFO, TARGET

from specmesh.router.callers import Caller
from specmesh.router.config import CallerConfig, PoolConfig, RouterConfig
from specmesh.router.discovery import Fleet
from specmesh.router.limits import CallerQuota, Gate
from specmesh.router.registration import draft_fault, needs_vocabulary
from specmesh.router.token_quota import KEPT_CALLERS, TokenQuota
from specmesh.runtime.errors import Overloaded, QuotaExceeded
from specmesh.runtime.types import ServiceInfo

POOLS = (PoolConfig(name="a", addresses=("x:1",)), PoolConfig(name="b", addresses=("x:2",)))


def config(**more: object) -> RouterConfig:
    return RouterConfig(verifiers=("v:1",), pools=POOLS, **more)  # type: ignore[arg-type]


async def test_the_gate_lets_in_by_priority_then_by_arrival() -> None:
    gate, order = Gate("g", 1, 10), []
    release = asyncio.Event()

    async def visit(name: str, priority: int) -> None:
        async with gate.turn(priority):
            order.append(name)
            await release.wait()

    visits = []
    for name, priority in (("first", 0), ("low", -1), ("a", 0), ("b", 0), ("high", 5)):
        visits.append(asyncio.create_task(visit(name, priority)))
        await asyncio.sleep(0)
    assert gate.num_waiting == 4
    release.set()
    await asyncio.gather(*visits)
    assert order == ["first", "high", "a", "b", "low"]
    assert gate.num_inside == gate.num_waiting == 0


async def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    """C41: RESOURCE_EXHAUSTED says when to try again."""
    gate = Gate("limits.max_sessions", 1, 1, retry_seconds=2.5)
    async with gate.turn():
        waiting = asyncio.create_task(_enter(gate))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=r"limits\.max_sessions") as caught:
            await _enter(gate)
        assert caught.value.retry_after == 2.5
    await waiting
    await _enter(gate)


def test_tokens_are_taken_in_advance_and_what_is_left_comes_back() -> None:
    """Requests at the same time cannot overdraw together; a caller in debt is told for how long."""
    now = 0.0
    quota = TokenQuota(lambda: now)
    caller, other = (Caller(name, frozenset(), max_tokens_per_minute=600) for name in ("a", "b"))
    with quota.hold(caller, 900) as held:
        held.used = lambda: 200
        names_it = pytest.raises(QuotaExceeded, match=r"limits\.max_tokens_per_caller_minute: 600")
        with names_it as refused, quota.hold(caller, 1):
            pass
        assert refused.value.retry_after == pytest.approx((300 + 1) / 10)
        with quota.hold(other, 900):
            pass
    with quota.hold(caller, 400) as held:  # 600 - 200 are left
        held.used = lambda: 400
    with pytest.raises(QuotaExceeded), quota.hold(caller, 1):
        pass
    now = 30.0
    with quota.hold(caller, 300) as held:
        held.used = lambda: 300
    with pytest.raises(QuotaExceeded) as refused, quota.hold(caller, 1):
        pass
    assert refused.value.retry_after == pytest.approx(0.1)
    now = 3000.0
    with quota.hold(caller, 600) as held:
        held.used = lambda: 600
    with pytest.raises(QuotaExceeded), quota.hold(caller, 1):
        pass


def test_a_caller_without_a_token_limit_has_none_and_idle_ones_are_forgotten() -> None:
    now = 0.0
    quota = TokenQuota(lambda: now)
    for _ in range(3):
        with quota.hold(Caller("free", frozenset()), 10**9) as held:
            held.used = lambda: 10**9
    for number in range(2000):
        now += 1.0
        with quota.hold(Caller(f"host {number}", frozenset(), max_tokens_per_minute=60), 30) as held:
            held.used = lambda: 30
    assert len(quota._buckets) <= KEPT_CALLERS


async def test_one_who_stops_waiting_takes_no_place() -> None:
    gate = Gate("g", 1, 5)
    async with gate.turn():
        gone, stays = asyncio.create_task(_enter(gate)), asyncio.create_task(_enter(gate))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})
    await stays
    assert gate.num_inside == 0


async def test_one_who_is_cancelled_as_the_turn_comes_passes_it_on() -> None:
    gate = Gate("g", 1, 5)
    holding = gate.turn()
    await holding.__aenter__()
    gone, stays = asyncio.create_task(_enter(gate)), asyncio.create_task(_enter(gate))
    await asyncio.sleep(0)
    await holding.__aexit__(None, None, None)
    gone.cancel()
    await asyncio.wait({gone})
    await stays
    assert gate.num_inside == 0


async def _enter(gate: Gate) -> None:
    async with gate.turn():
        pass


def test_one_caller_cannot_take_it_all() -> None:
    quota = CallerQuota(retry_seconds=1.5)
    one, other = Caller("one", frozenset(), max_sessions=1), Caller("other", frozenset(), max_sessions=1)
    with quota.hold(one), quota.hold(other), pytest.raises(QuotaExceeded) as caught, quota.hold(one):
        pass
    assert caught.value.retry_after == 1.5
    with quota.hold(one):
        pass


def test_configuration_refuses_pools_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="no such pool: c"):
        config(callers=(CallerConfig(name="team", token="secret", pools=("c",)),))
    with pytest.raises(ValueError, match="same name"):
        RouterConfig(verifiers=("v:1",), pools=(POOLS[0], POOLS[0]))
    with pytest.raises(ValueError, match=r"verifiers\.1\n.*no port"):
        RouterConfig(verifiers=("v:1", "v"))
    with pytest.raises(ValueError, match=r"addresses\.0\n.*http:// in front"):
        PoolConfig(name="a", addresses=("http://x:1",))


def info(**changes: object) -> ServiceInfo:
    return replace(INFO, **changes)


def hashes(*ids: int) -> bytes:
    return b"".join(each.to_bytes(4, "little") for each in ids)


def test_a_swapped_vocabulary_is_refused_by_its_first_id() -> None:
    """C14: same size, ids 7 and 8 swapped."""
    target = info(tokenizer_digest="t", vocabulary_size=10, vocabulary_hashes=hashes(*range(10)))
    swapped = info(tokenizer_digest="s", vocabulary_size=10, vocabulary_hashes=hashes(0, 1, 2, 3, 4, 5, 6, 8, 7, 9))
    assert needs_vocabulary(swapped, target)
    assert "token id 7 " in draft_fault(swapped, target)


def test_vocabularies_of_one_meaning_fit_whatever_their_digest() -> None:
    target = info(tokenizer_digest="t", vocabulary_size=4, vocabulary_hashes=hashes(0, 1, 2, 3))
    same = info(tokenizer_digest="s", vocabulary_size=4, vocabulary_hashes=hashes(0, 1, 2, 3))
    assert draft_fault(same, target) == ""
    longer = info(tokenizer_digest="s", vocabulary_size=5, vocabulary_hashes=hashes(0, 1, 2, 3, 4))
    assert "first id 4" in draft_fault(longer, target)
    assert "no vocabulary" in draft_fault(info(tokenizer_digest="s", vocabulary_size=4), target)


def test_a_lookup_fits_every_vocabulary_and_another_contract_fits_none() -> None:
    target = TARGET.info
    assert draft_fault(info(vocabulary_size=0, kind="lookup"), target) == ""
    assert "contract 99" in draft_fault(info(vocabulary_size=0, contract_version=99), target)


class Member:
    def __init__(self, address: str) -> None:
        self.address = address
        self.ended = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def test_replicas_come_and_go_with_their_name() -> None:
    answers: list[list[str] | OSError] = [["10.0.0.1:5"], OSError("away"), ["10.0.0.2:5"], ["10.0.0.2:5"]]
    looked_up = asyncio.Queue[None]()
    gone: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("drafts.svc", 5)
        looked_up.put_nowait(None)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    fleet = Fleet(
        ["fixed:1", "dns:///drafts.svc:5"],
        Member,
        interval=0.001,
        resolve=resolve,
        removed=lambda member: gone.append(member.address),
    )
    running = asyncio.create_task(fleet.run())
    await looked_up.get()
    await looked_up.get()
    first = fleet.members["10.0.0.1:5"]
    assert set(fleet.members) == {"fixed:1", "10.0.0.1:5"}
    await looked_up.get()
    await looked_up.get()
    assert set(fleet.members) == {"fixed:1", "10.0.0.2:5"}
    assert first.ended
    assert gone == ["10.0.0.1:5"]
    running.cancel()
    await asyncio.wait({running})
    assert not fleet.members


def test_a_router_never_imports_torch() -> None:
    """A router stays small: torch alone would take 300 MB."""
    names = "'torch', 'transformers', 'specmesh.kernels', 'specmesh.model'"
    program = f"import sys, specmesh.router.__main__; sys.exit(any(name in sys.modules for name in ({names})))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

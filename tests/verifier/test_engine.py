"""The engine with its thread: wake-ups, concurrency, cancellation, and what happens when it breaks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import torch
from verifier_parts import COUNTING, make_spec, random_logits
from verifier_server import until

from specmesh.model.spans import Span
from specmesh.runtime.errors import Draining, MeshError
from specmesh.runtime.types import Block, BlockRefusal, EntryErrorReason, EntryFailure, Rule, Sampling, StepResult
from specmesh.verifier.backend import Verified, Work
from specmesh.verifier.config import EngineConfig
from specmesh.verifier.engine import MAX_COMMANDS, Engine
from specmesh.verifier.paged import PagedBackend
from specmesh.verifier.session import Answer
from specmesh.verifier.target import TableTarget


class Stream:
    """A peer's stream on the event loop, by session."""

    def __init__(self, peer: str = "router") -> None:
        self.peer = peer
        self.queues: dict[int, asyncio.Queue[Answer]] = {}

    def deliver(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self.queues.setdefault(answer.session_id, asyncio.Queue()).put_nowait(answer)

    async def get(self, session_id: int) -> Answer:
        return await self.queues.setdefault(session_id, asyncio.Queue()).get()


class HeldTarget(TableTarget):
    """A forward that waits until it is let go."""

    def __init__(self) -> None:
        super().__init__(COUNTING, max_context_tokens=256)
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        self.entered.set()
        assert self.go_on.wait(10)
        return super().forward(spans)


class BrokenBackend(PagedBackend):
    """Answers with fewer outcomes than it was asked for: a fault of the engine's own, not of one tick's sessions."""

    def verify(self, batch: Sequence[Work]) -> Verified:
        return Verified(())


@asynccontextmanager
async def running(
    target: TableTarget, *, num_blocks: int = 64, backend: type[PagedBackend] = PagedBackend
) -> AsyncIterator[Engine]:
    engine = Engine(backend(target, num_blocks=num_blocks, max_context_tokens=256), EngineConfig())
    engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def generate(
    engine: Engine, stream: Stream, session_id: int, tokens: int, block: Sequence[int] = ()
) -> list[int]:
    """Open a sampled session and step it to its end."""
    spec = make_spec(
        [session_id % 8], session_id=session_id, peer=stream.peer, max_output_tokens=tokens,
        sampling=Sampling(), rule=Rule.COUPLED, verify_key=session_id,
    )  # fmt: skip
    await engine.open(spec)
    output: list[int] = []
    while True:
        engine.submit(stream, session_id, Block(1 + len(output), tuple(block)))
        answer = await stream.get(session_id)
        assert isinstance(answer, StepResult)
        output += answer.token_ids
        if answer.finish_reason is not None:
            return output


async def test_many_tasks_at_once_get_what_they_would_get_alone() -> None:
    """C26."""
    logits = random_logits(8, seed=3)
    async with running(TableTarget(logits)) as engine:
        stream = Stream()
        alone = [await generate(engine, stream, session_id, 30) for session_id in range(6)]
        blocks = [(1, 2), (), (3,), (0, 0, 0, 0), (7,), ()]
        together = await asyncio.gather(
            *(generate(engine, stream, session_id, 30, blocks[session_id]) for session_id in range(6))
        )
        assert together == alone
        await engine.wait_empty()
        assert engine.backend.num_free_blocks == engine.backend.num_blocks


async def test_a_close_during_a_tick_frees_after_it() -> None:
    """C22."""
    target = HeldTarget()
    async with running(target) as engine:
        await engine.open(make_spec([3]))
        engine.submit(Stream(), 1, Block(1))
        assert await asyncio.to_thread(target.entered.wait, 10)
        engine.close("router", 1)
        assert engine.num_sessions == 1
        target.go_on.set()
        await until(lambda: engine.num_sessions == 0)
        assert engine.backend.num_free_blocks == engine.backend.num_blocks


async def test_who_sends_more_than_the_engine_takes_has_to_wait_for_it() -> None:
    """Nothing is refused and nothing is queued without bound: the reader of the stream stands still."""
    target = HeldTarget()
    async with running(target) as engine:
        await engine.open(make_spec([3]))
        await engine.keep_up()
        engine.submit(Stream(), 1, Block(1))
        assert await asyncio.to_thread(target.entered.wait, 10)
        for session_id in range(MAX_COMMANDS):
            engine.close("router", session_id)
        waiting = asyncio.ensure_future(engine.keep_up())
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        target.go_on.set()
        async with asyncio.timeout(10):
            await waiting
        assert engine.num_sessions == 0


async def test_a_cancelled_open_leaves_nothing_behind() -> None:
    async with running(TableTarget(COUNTING, max_context_tokens=256), num_blocks=1) as engine:
        await engine.open(make_spec([3], max_output_tokens=10))
        waiting = asyncio.ensure_future(engine.open(make_spec([3], session_id=2, max_output_tokens=10)))
        await until(lambda: engine.num_waiting == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: engine.num_waiting == 0)
        engine.close("router", 1)
        await engine.wait_empty()


async def test_a_session_ends_with_its_lease_without_anybody_asking() -> None:
    async with running(TableTarget(COUNTING, max_context_tokens=256)) as engine:
        await engine.open(make_spec([3], lease_ms=50))
        assert engine.counters["sessions_opened"] == 1
        async with asyncio.timeout(5):
            await engine.wait_empty()
        assert engine.counters["leases_ended"] == 1


async def test_a_drain_ends_when_the_last_session_does() -> None:
    async with running(TableTarget(COUNTING, max_context_tokens=256)) as engine:
        stream = Stream()
        await engine.open(make_spec([3], max_output_tokens=1))
        engine.drain()
        with pytest.raises(Draining):
            await engine.open(make_spec([3], session_id=2))
        emptied = asyncio.ensure_future(engine.wait_empty())
        engine.submit(stream, 1, Block(1))
        await stream.get(1)
        async with asyncio.timeout(5):
            await emptied


async def test_an_engine_whose_loop_dies_says_so() -> None:
    async with running(TableTarget(COUNTING, max_context_tokens=256), num_blocks=1, backend=BrokenBackend) as engine:
        await engine.open(make_spec([3], max_output_tokens=10))
        waiting = asyncio.ensure_future(engine.open(make_spec([3], session_id=2, max_output_tokens=10)))
        await until(lambda: engine.num_waiting == 1)
        engine.submit(Stream(), 1, Block(1))
        async with asyncio.timeout(5):
            await engine.failed.wait()
        with pytest.raises(MeshError, match="engine has failed"):
            await waiting
        with pytest.raises(MeshError, match="engine has failed"):
            await engine.open(make_spec([3]))
        await engine.wait_empty()


async def test_a_block_over_the_limit_is_refused_and_the_step_done_without_it() -> None:
    async with running(TableTarget(COUNTING, max_context_tokens=256)) as engine:
        stream = Stream()
        await engine.open(make_spec([3]))
        engine.submit(stream, 1, Block(1, tuple(range(4, 21))))
        answer = await stream.get(1)
        assert isinstance(answer, StepResult)
        assert (answer.block_refusal, answer.token_ids) == (BlockRefusal.TOO_LONG, (4,))
        assert (answer.num_drafted, answer.reward) == (0, None)


async def test_a_session_of_another_peer_is_not_known() -> None:
    async with running(TableTarget(COUNTING, max_context_tokens=256)) as engine:
        stream = Stream("stranger")
        await engine.open(make_spec([3]))
        engine.submit(stream, 1, Block(1))
        answer = await stream.get(1)
        assert isinstance(answer, EntryFailure)
        assert answer.reason is EntryErrorReason.UNKNOWN_SESSION
        engine.close("stranger", 1)
        engine.submit(own := Stream(), 1, Block(1))
        assert isinstance(await own.get(1), StepResult)

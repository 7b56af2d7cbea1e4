"""The engine as the event loop sees it: commands go to its thread, answers come back once per tick."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from specmesh.runtime.errors import MeshError
from specmesh.runtime.rows import RowArrays, check_block
from specmesh.runtime.types import Block, BlockRefusal, EntryErrorReason, EntryFailure, SessionSpec
from specmesh.verifier.admission import Opening
from specmesh.verifier.backend import Backend
from specmesh.verifier.batcher import TickLimits
from specmesh.verifier.config import EngineConfig
from specmesh.verifier.core import Core
from specmesh.verifier.entries import EntryLimits
from specmesh.verifier.outbox import Outbox
from specmesh.verifier.session import NEVER_NS, AnswerStream, Entry, Session
from specmesh.verifier.thread import EngineThread

MAX_COMMANDS = 4096
"""Commands that may wait for the end of a tick; while there are more, `keep_up` waits."""
_MS = 1_000_000


class Engine:
    """Create and use it on one event loop. All its state is the thread's; the loop reads sizes and specs only."""

    def __init__(self, backend: Backend, config: EngineConfig, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.backend = backend
        self.config = config
        self.failed = asyncio.Event()
        """Set when the engine's own loop has died: the process must not go on."""
        self._clock = clock
        self._core = Core(
            backend,
            limits=TickLimits(config.max_verify_rows, config.max_prefill_tokens),
            entry_limits=EntryLimits(config.max_conditional, config.max_run_tokens),
            max_waiting_sessions=config.max_waiting_sessions,
            max_sessions=config.max_sessions,
            clock=clock,
        )
        self._thread = EngineThread(
            self._core,
            clock=clock,
            hand_over=lambda outbox: self._post(partial(self._deliver, outbox)),
            on_failure=lambda: self._post(self._fail),
        )
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Future[int]] = set()
        self._emptied = asyncio.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; what is still open gets no answer."""
        await asyncio.to_thread(self._thread.stop)

    async def open(self, spec: SessionSpec, *, remaining_ms: int = 0) -> int:
        """Return when the session is admitted, with the tokens found in the cache; a cancelled call leaves nothing.

        `remaining_ms`: the session's time in all, 0 for no bound but its lease. Raises `Overloaded` or `Draining`.
        """
        if self.failed.is_set():
            raise MeshError("the engine has failed; this verifier is going away")
        done: asyncio.Future[int] = self._loop.create_future()
        opening = Opening(spec, partial(_settle, done), self._deadline_ns(remaining_ms))
        self._opening.add(done)
        self._thread.put(partial(self._core.open, opening))
        try:
            return await done
        except asyncio.CancelledError:
            self._thread.put(partial(self._core.abandon, opening))
            raise
        finally:
            self._opening.discard(done)

    def submit(self, stream: AnswerStream, session_id: int, block: Block, *, remaining_ms: int = 0) -> None:
        """Have a block verified; the answer, or what was wrong, is delivered to `stream`.

        The block is checked here, beside the engine's thread: of the session only `spec` is read, which never changes.
        """
        session = self._core.sessions.get((stream.peer, session_id))
        if session is None:
            message = "the session is not open here"
            stream.deliver([EntryFailure(session_id, block.position, EntryErrorReason.UNKNOWN_SESSION, message)])
            return
        entry = self._checked_entry(stream, session, block, self._deadline_ns(remaining_ms))
        self._thread.put(partial(self._core.submit, session, entry))

    async def keep_up(self) -> None:
        """Wait, when much is queued, until the engine has taken it: flow control then holds what peers send more."""
        if self._thread.num_commands >= MAX_COMMANDS:
            done: asyncio.Future[int] = self._loop.create_future()
            self._thread.put(lambda: self._post(partial(_settle, done, 0)))
            await done

    def close(self, peer: str, session_id: int) -> None:
        """End a session; at once, or after the tick it is in."""
        self._thread.put(partial(self._core.close, (peer, session_id)))

    def lose_stream(self, stream: AnswerStream) -> None:
        """The peer's stream has ended; its sessions end when their leases do."""
        self._thread.put(partial(self._core.lose_stream, stream))

    def give_up(self) -> None:
        """What computes is gone: fail, as when the engine's own loop dies. From any thread."""
        self._post(self._fail)

    def drain(self) -> None:
        """Refuse new sessions from now on."""
        self._thread.put(self._core.drain)

    async def wait_empty(self) -> None:
        """Until no session is open, or the engine has failed."""
        while self.num_sessions and not self.failed.is_set():
            self._emptied.clear()
            await self._emptied.wait()

    @property
    def num_sessions(self) -> int:
        """Sessions open now."""
        return len(self._core.sessions)

    @property
    def num_waiting(self) -> int:
        """Sessions that wait for memory."""
        return len(self._core.waiting)

    @property
    def num_pending(self) -> int:
        """Sessions that wait for their turn in a tick."""
        return sum(session.entry is not None for session in list(self._core.sessions.values()))

    @property
    def counters(self) -> dict[str, int]:
        """What has happened so far, by name."""
        return dict(self._core.counters)

    def _deadline_ns(self, remaining_ms: int) -> int:
        return self._clock() + remaining_ms * _MS if remaining_ms else NEVER_NS

    def _checked_entry(self, stream: AnswerStream, session: Session, block: Block, deadline_ns: int) -> Entry:
        arrived_ns = self._clock()
        refusal, rows = self._check(session, block)
        tokens = block.token_ids if refusal is None else ()
        return Entry(
            stream, block.position, tokens, rows, refusal, arrived_ns, deadline_ns, block.after, block.run_count
        )

    def _check(self, session: Session, block: Block) -> tuple[BlockRefusal | None, Sequence[RowArrays]]:
        if len(block.token_ids) > self.config.max_block_length:
            return BlockRefusal.TOO_LONG, ()
        return check_block(
            block.token_ids,
            block.rows,
            vocabulary_size=self.backend.vocabulary_size,
            draft_key=session.spec.draft_key,
            block_start=block.position,
        )

    def _post(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    def _deliver(self, outbox: Outbox) -> None:
        for opening, result in outbox.settled:
            opening.settle(result)
        for stream, answers in outbox.answers():
            stream.deliver(answers)
        if not self._core.sessions:
            self._emptied.set()

    def _fail(self) -> None:
        self.failed.set()
        self._emptied.set()
        for done in self._opening:
            _settle(done, MeshError("the engine has failed; this verifier is going away"))


def _settle(done: asyncio.Future[int], result: MeshError | int) -> None:
    if done.done():
        return
    if isinstance(result, MeshError):
        done.set_exception(result)
    else:
        done.set_result(result)

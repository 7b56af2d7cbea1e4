"""Where the engine runs: in the event loop when a token costs microseconds, in a thread of its own otherwise."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from specmesh.draft.block import Event
from specmesh.draft.engine import DraftEngine

T = TypeVar("T")
Command = Callable[[DraftEngine], None]

MAX_COMMANDS = 64
"""Commands (frames of entries) that may wait for the end of a tick; while there are more, `keep_up` waits."""
SLICE_SECONDS = 0.002
"""How long an inline engine works before others in the event loop have their turn."""


class Runner(Protocol):
    """Carries commands to the engine and events back to their receivers, in the event loop."""

    idle: asyncio.Event
    """No block is in flight."""
    failed: asyncio.Future[None]
    """Ends, with the error, if the engine can do no more."""

    def post(self, command: Command) -> None:
        """Do this to the engine soon, after what was posted before."""
        ...

    async def call(self, command: Callable[[DraftEngine], T]) -> T:
        """Do this to the engine and wait for what comes of it."""
        ...

    async def keep_up(self) -> None:
        """Wait, when much is posted, until the engine has done it: flow control then holds what peers send more."""
        ...

    async def stop(self) -> None:
        """No more commands; what is in flight is left."""
        ...


class InlineRunner:
    """Runs the engine in the event loop that creates it."""

    failed: asyncio.Future[None]

    def __init__(self, engine: DraftEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self.failed = self._loop.create_future()
        self.idle = asyncio.Event()
        self.idle.set()

    def post(self, command: Command) -> None:
        """Done at once; so is the work that follows, as far as a slice goes."""
        command(self._engine)
        if not self._scheduled:
            self._work()

    async def call(self, command: Callable[[DraftEngine], T]) -> T:
        """Done at once."""
        result = command(self._engine)
        self._deliver()
        return result

    async def keep_up(self) -> None:
        """Nothing waits here."""

    async def stop(self) -> None:
        """There is nothing to stop."""

    def _work(self) -> None:
        self._scheduled = False
        until = time.monotonic() + SLICE_SECONDS
        self._engine.tick()
        while self._engine.num_blocks and not self._engine.streaming and time.monotonic() < until:
            self._engine.tick()
        self._deliver()
        if self._engine.num_blocks:
            self._scheduled = True
            self._loop.call_soon(self._work)

    def _deliver(self) -> None:
        for event in self._engine.take_events():
            event.receiver.receive(event)
        if self._engine.num_blocks:
            self.idle.clear()
        else:
            self.idle.set()


class ThreadRunner:
    """Runs the engine in a thread; the event loop is woken once per tick."""

    failed: asyncio.Future[None]

    def __init__(self, engine: DraftEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._commands: list[Command] = []
        self._num_posted = 0
        self._stopping = False
        self.idle = asyncio.Event()
        self.idle.set()
        self.failed = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="draft-engine", daemon=True)
        self._thread.start()

    def post(self, command: Command) -> None:
        """Done before the engine's next tick."""
        self.idle.clear()
        self._num_posted += 1
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    async def call(self, command: Callable[[DraftEngine], T]) -> T:
        """Done before the engine's next tick; raises what `command` raises."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def run(engine: DraftEngine) -> None:
            try:
                result = command(engine)
            except Exception as error:  # noqa: BLE001  it belongs to the caller, who gets it
                self._loop.call_soon_threadsafe(_fail, answer, error)
            else:
                self._loop.call_soon_threadsafe(_resolve, answer, result)

        self.post(run)
        return await answer

    async def keep_up(self) -> None:
        """Commands are done in order, so the last one says that all are."""
        if len(self._commands) >= MAX_COMMANDS:
            await self.call(lambda _: None)

    async def stop(self) -> None:
        """Ends after the tick that is running."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        num_done = 0
        try:
            while (commands := self._next_commands()) is not None:
                for command in commands:
                    command(self._engine)
                self._engine.tick()
                num_done += len(commands)
                idle_after = None if self._engine.num_blocks else num_done
                self._loop.call_soon_threadsafe(self._deliver, self._engine.take_events(), idle_after)
        except Exception as error:  # noqa: BLE001  the process must learn of it
            self._loop.call_soon_threadsafe(_fail, self.failed, error)

    def _next_commands(self) -> list[Command] | None:
        """Waits when there is nothing to do; None at the end."""
        with self._changed:
            while not (self._commands or self._engine.num_blocks or self._stopping):
                self._changed.wait()
            commands, self._commands = self._commands, []
            return None if self._stopping else commands

    def _deliver(self, events: list[Event], idle_after: int | None) -> None:
        """`idle_after`: the engine had nothing left to do after so many commands."""
        for event in events:
            event.receiver.receive(event)
        if idle_after == self._num_posted:
            self.idle.set()


def _resolve(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

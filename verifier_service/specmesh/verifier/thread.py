"""The engine's thread: runs commands, sweeps, ticks, and hands over what there is to say once per pass."""

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from specmesh.verifier.core import Core
from specmesh.verifier.outbox import Outbox
from specmesh.verifier.session import NEVER_NS

_log = logging.getLogger(__name__)

_NS = 1_000_000_000
Command = Callable[[], None]


class EngineThread:
    """Owns a `Core`. `hand_over` and `on_failure` are called on this thread."""

    def __init__(
        self,
        core: Core,
        *,
        clock: Callable[[], int],
        hand_over: Callable[[Outbox], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._core = core
        self._clock = clock
        self._hand_over = hand_over
        self._on_failure = on_failure
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._running = True
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, command: Command) -> None:
        """Have a command run between two ticks. From any thread."""
        self._inbox.put(command)

    @property
    def num_commands(self) -> int:
        """Commands that wait for the end of a tick."""
        return self._inbox.qsize()

    def stop(self) -> None:
        """End the thread after the pass it is in, and wait for it."""
        self._inbox.put(self._stop)
        if self._thread.ident is not None:
            self._thread.join()

    def _stop(self) -> None:
        self._running = False

    def _run(self) -> None:
        try:
            while self._running:
                self._pass()
        except BaseException:  # noqa: BLE001  a thread must not die in silence
            _log.exception("the engine has failed")
            self._on_failure()

    def _pass(self) -> None:
        had_sessions = bool(self._core.sessions)
        self._receive()
        self._core.sweep()
        self._core.tick()
        outbox = self._core.outbox
        if outbox or (had_sessions and not self._core.sessions):
            self._core.outbox = Outbox()
            self._hand_over(outbox)

    def _receive(self) -> None:
        """Run the commands that are there; sleep while there is nothing to do, or as long as gathering pays."""
        if not self._core.has_work:
            self._run_command_by(self._core.next_sweep_ns)
        while not self._inbox.empty():
            self._inbox.get_nowait()()
        while (until_ns := self._core.gather_until_ns()) is not None:
            self._run_command_by(until_ns)

    def _run_command_by(self, until_ns: int) -> None:
        """Wait for a command and run it; return without one when the time has come."""
        seconds = None if until_ns == NEVER_NS else max(0.0, (until_ns - self._clock()) / _NS)
        try:
            command = self._inbox.get(timeout=seconds)
        except Empty:
            return
        command()

"""The other ranks of a model, as processes: started by the first, watched by it, and never without it."""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from specmesh.model.place import MEETING, Meeting, Place, place_of
from specmesh.runtime.config import ConfigError
from specmesh.runtime.modules import module_command
from specmesh.verifier.config import VerifierConfig

LOOPBACK = "127.0.0.1"
LOST_STATUS = 70
GRACE_SECONDS = 5.0
"""For an orderly end after a rank is lost; a thread that hangs in a collective operation would never let it come."""
REFUSED_STATUS = 2
REFUSED_SECONDS = 60.0
END_SECONDS = 10.0
REASON_SECONDS = 0.5

SHARING = threading.Event()
"""Set in a process that shares a model, which has to `leave`."""

_log = logging.getLogger(__name__)


class Followers:
    """Ranks 1 to `size` - 1 as children of this process, which is rank 0; of `size` 1 there are none.

    They get this process's own command line. `on_lost` is called, on another thread, when one ends before its time;
    the process itself then ends within `GRACE_SECONDS`, with status 70, if nobody ends it sooner.
    """

    def __init__(self, place: Place | None, environ: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        """Starts the processes, when `place` says where they meet."""
        self.place = place
        self.on_lost: Callable[[], None] = _nobody
        self._children: list[subprocess.Popen[bytes]] = []
        self._ending = threading.Event()
        self._lost = threading.Event()
        if place is not None and place.meeting is not None:
            for rank in range(1, place.size):
                self._start(rank, environ, arguments)

    def _start(self, rank: int, environ: Mapping[str, str], arguments: Sequence[str]) -> None:
        # A session of their own, so that the terminal's Ctrl-C reaches them through rank 0 only.
        child = subprocess.Popen(
            module_command("specmesh.verifier", arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        self._children.append(child)
        threading.Thread(target=self._watch, args=(rank, child), name=f"rank-{rank}", daemon=True).start()

    def _watch(self, rank: int, child: "subprocess.Popen[bytes]") -> None:
        status = child.wait()
        if not self._ending.is_set():
            _log.error(f"rank {rank} of the model has ended with status {status}; nothing can be computed without it")
            self._lost.set()
            # What it was refused rank 0 is about to be refused too, and says so.
            end_soon(GRACE_SECONDS if status != REFUSED_STATUS else REFUSED_SECONDS)
            self.on_lost()

    def send_home(self, end: Callable[[], None]) -> None:
        """Let `end` tell them that this is the end."""
        self._ending.set()
        end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for those that were sent home; the end of their input ends the others."""
        if error is not None and self._children:
            # What failed here may have failed because one of them died, which its own thread is about to say.
            self._lost.wait(REASON_SECONDS)
        self._ending.set()
        for child in self._children:
            if error is not None and child.stdin is not None:
                child.stdin.close()
            try:
                child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self.place is not None and self.place.meeting is not None and self.place.meeting.listening is not None:
            self.place.meeting.listening.close()


def _nobody() -> None:
    """While the model loads: the load fails by itself, or the process is ended."""


def given_place(config: VerifierConfig) -> Place | None:
    """The place that torchrun, or rank 0, has given this process. Raises `ConfigError`."""
    try:
        place = place_of(os.environ, config.tensor_parallel)
    except ValueError as error:
        raise ConfigError(f"tensor_parallel: {error}") from None
    if config.tensor_parallel > 1:
        SHARING.set()
    if place is not None and place.meeting is not None:
        end_with_parent()
    return place


def start_followers(config: VerifierConfig, place: Place | None) -> Followers:
    """The other ranks of this one, unless somebody else starts them."""
    if config.tensor_parallel == 1 or place is not None:
        return Followers(place, os.environ)
    store = socket.socket()
    store.bind((LOOPBACK, 0))
    store.listen(config.tensor_parallel)
    port = int(store.getsockname()[1])
    environment = {MEETING: f"{LOOPBACK}:{port}", "WORLD_SIZE": str(config.tensor_parallel), "LOCAL_RANK": "0"}
    if sys.platform == "linux":  # elsewhere that interface has another name
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    if config.device == "cpu":  # transformers would divide the model among GPUs where it sees any
        environment["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.update(environment)  # torch and transformers read it in this process as well
    place = Place(0, config.tensor_parallel, 0, Meeting(LOOPBACK, port, store))
    return Followers(place, os.environ, sys.argv[1:])


def end_soon(seconds: float) -> None:
    """End this process after a while whatever its threads do."""
    timer = threading.Timer(seconds, os._exit, (LOST_STATUS,))
    timer.daemon = True
    timer.start()


def end_with_parent() -> None:
    """Let this process end at once when rank 0 does, however that ends: the pipe between them closes then."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(LOST_STATUS)

    threading.Thread(target=wait, name="parent", daemon=True).start()


class Watchdog:
    """Ends the process when what it watches takes longer than `seconds`: a rank that hangs makes all others hang.

    Looks every quarter of that time, so that watching costs nothing.
    """

    def __init__(self, seconds: float, expired: Callable[[], None] | None = None) -> None:
        self._seconds = seconds
        self._expired = expired or self._end
        self._since: float | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def __enter__(self) -> Self:
        self._since = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._since = None

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds / 4):
            since = self._since
            if since is not None and time.monotonic() - since > self._seconds:
                self._expired()
                return

    def _end(self) -> None:
        _log.critical(f"the ranks of the model have not finished a tick within {self._seconds:g} s; ending")
        os._exit(LOST_STATUS)

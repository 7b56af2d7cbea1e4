"""What files say, read again when they change: certificates and tokens rotate while a service runs."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

RECHECK_SECONDS = 1.0
"""How long a value may be old: looking at the files for every call would cost more than the call's other checks."""

_log = logging.getLogger(__name__)


class Reloaded(Generic[T]):
    """The value of some files. One that cannot be read any more leaves the last good value, and a line in the log."""

    def __init__(
        self, paths: Sequence[Path], read: Callable[[], T], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`read` turns the files into a value. Later only OSError and ValueError are expected of it; their text is
        logged and must hold no secret.
        """
        self._paths = tuple(paths)
        self._read = read
        self._clock = clock
        self._signature = self._look()
        self._value = read()
        self._look_again = clock() + RECHECK_SECONDS

    @property
    def value(self) -> T:
        """As of at most `RECHECK_SECONDS` ago."""
        now = self._clock()
        if now >= self._look_again:
            self._look_again = now + RECHECK_SECONDS
            self._reread()
        return self._value

    def _reread(self) -> None:
        signature = self._look()
        if signature == self._signature:
            return
        # Before reading: what changes meanwhile is read next time.
        self._signature = signature
        names = [str(path) for path in self._paths]
        try:
            self._value = self._read()
        except (OSError, ValueError) as error:
            fields = {"files": names, "reason": str(error)}
            _log.error("changed files cannot be used; what they said before holds", extra=fields)
            return
        _log.info("files were read again", extra={"files": names})

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes with the files' content; links are followed, as a mounted secret is switched by a link."""
        return tuple(_signature(path) for path in self._paths)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size

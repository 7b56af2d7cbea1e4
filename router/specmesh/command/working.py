"""Parts of a command that take their time: a person sees that something goes on, at a terminal and in a file."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

SAID_EVERY_SECONDS = 3.0
"""Where lines stay."""


@contextmanager
def working(console: Console, what: str, seconds: float = SAID_EVERY_SECONDS) -> Iterator[Callable[[], None]]:
    """While a block runs: a spinner with the time, which leaves no trace; in a file a line, and one every `seconds`.

    What the block gets ends it early, as often as it is called.
    """
    over = _spinner(console, what) if console.is_terminal else _lines(console, what, seconds)
    try:
        yield over
    finally:
        over()


def _spinner(console: Console, what: str) -> Callable[[], None]:
    columns = (SpinnerColumn(), TextColumn(escape(what)), TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True)
    progress.add_task("")
    progress.start()
    return progress.stop


def _lines(console: Console, what: str, seconds: float) -> Callable[[], None]:
    def say(passed: float) -> None:
        console.print(f"{what}: {passed:.0f} s", markup=False, highlight=False)

    console.print(what, markup=False, highlight=False)
    return at_intervals(say, seconds)


def at_intervals(say: Callable[[float], None], seconds: float) -> Callable[[], None]:
    """Call `say` with the time that has passed every `seconds`, whatever else this process does.

    The result ends it: nothing is said after it has returned.
    """
    began, over = time.monotonic(), threading.Event()

    def turn() -> None:
        while not over.wait(seconds):
            say(time.monotonic() - began)

    thread = threading.Thread(target=turn, name="progress", daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return end

"""What a person sees while a mesh starts and runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from specmesh.command.working import SAID_EVERY_SECONDS, at_intervals

MAX_LINE = 100


@dataclass
class _Row:
    name: str
    began: float
    note: str = "loading"
    address: str = ""
    missed: bool = False
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))

    def __rich__(self) -> Text | Spinner:
        if self.missed:
            return Text.assemble(("✗ ", "red"), f"{self.name:<16} ", ("ended; the mesh goes on without it", "dim"))
        if self.address:
            return Text.assemble(("✓ ", "green"), f"{self.name:<16} ", (self.note, "dim"))
        seconds = time.monotonic() - self.began
        self.spinner.update(text=Text.assemble(f"{self.name:<16} ", (f"{self.note} ({seconds:.0f} s)", "dim")))
        return self.spinner


class TerminalView:
    """Log lines, and while the mesh starts below them a line per service that shows what it is at."""

    def __init__(self, console: Console, *, show_log: bool) -> None:
        """With `show_log` every log line is printed, else warnings and errors only."""
        self._console = console
        self._show_log = show_log
        self._rows: dict[str, _Row] = {}
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._render)

    def starting(self, name: str) -> None:
        """A spinner for it."""
        self._rows[name] = _Row(name, time.monotonic())
        self._live.start()

    def line(self, name: str, text: str) -> None:
        """Its latest words beside its name while it starts, which others replace; and what is to stay, above."""
        _print_log(self._console, name, text, everything=self._show_log)
        if name in self._rows and not self._rows[name].address:
            self._rows[name].note = text[:MAX_LINE]

    def ready(self, name: str, address: str) -> None:
        """A tick for it."""
        row = self._rows[name]
        row.address, row.note = address, f"{address}, after {time.monotonic() - row.began:.1f} s"

    def missed(self, name: str, text: str) -> None:
        """A cross for it, and why, to stay."""
        _print_log(self._console, name, text, everything=True)
        if name in self._rows:
            self._rows[name].missed = True

    def close(self) -> None:
        """All is ready, or failed: leave the lines as they are."""
        self._live.stop()

    def _render(self) -> Group:
        return Group(*self._rows.values())


class PlainView:
    """The same for a log file: a line an event."""

    def __init__(self, console: Console, *, show_log: bool, seconds: float = SAID_EVERY_SECONDS) -> None:
        """With `show_log` every log line is printed, else warnings and errors only; every `seconds` of a start it is
        said what is waited for, and what that is at.
        """
        self._console = console
        self._show_log = show_log
        self._seconds = seconds
        self._began: dict[str, float] = {}
        self._waiting: dict[str, str] = {}
        self._end: Callable[[], None] | None = None

    def starting(self, name: str) -> None:
        """Say so."""
        self._began[name] = time.monotonic()
        self._waiting[name] = "loading"
        self._console.print(f"{name}: starting")
        if self._end is None:
            self._end = at_intervals(self._say_waiting, self._seconds)

    def line(self, name: str, text: str) -> None:
        """Say it if asked to."""
        if name in self._waiting:
            self._waiting[name] = text[:MAX_LINE]
        _print_log(self._console, name, text, everything=self._show_log)

    def ready(self, name: str, address: str) -> None:
        """Say so."""
        self._waiting.pop(name, None)
        self._console.print(f"{name}: ready at {address} after {time.monotonic() - self._began[name]:.1f} s")

    def missed(self, name: str, text: str) -> None:
        """Say so, and why."""
        self._waiting.pop(name, None)
        _print_log(self._console, name, text, everything=True)

    def close(self) -> None:
        """All is ready, or failed."""
        if self._end is not None:
            self._end()
            self._end = None

    def _say_waiting(self, passed: float) -> None:
        if parts := [f"{name} ({note})" for name, note in list(self._waiting.items())]:
            told = f"waiting after {passed:.0f} s for {', '.join(parts)}"
            self._console.print(told, markup=False, highlight=False, soft_wrap=True)


def start_view(console: Console, *, show_log: bool) -> TerminalView | PlainView:
    """The view that fits where `console` writes to."""
    return TerminalView(console, show_log=show_log) if console.is_terminal else PlainView(console, show_log=show_log)


def _print_log(console: Console, name: str, text: str, *, everything: bool) -> None:
    if everything or text.startswith(("warning:", "error:", "critical:")):
        console.print(f"[dim]{escape(name)} |[/dim] {escape(text)}", soft_wrap=True, highlight=False)

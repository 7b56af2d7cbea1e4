"""One service as a process of its own: start it, know when it is ready, why it ended, end it."""

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specmesh.runtime.modules import module_command

STOP_SECONDS = 40.0
"""Longer than a service's default drain."""
KEPT_LINES = 20
MAX_LINE_BYTES = 1024 * 1024
TOLD = {
    "pool": "{}", "arm": "{}", "model": "{}", "address": "{}", "reason": "{}", "error": "{}", "port": "port {}",
    "request_id": "request {}", "num_output": "{} tokens", "finish_reason": "{}",
}  # fmt: skip
"""Fields of a log line that a person needs to understand it, and how they are said."""


class ServiceEnded(Exception):
    """A service ended that should have gone on; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run: a name for people, the module, its arguments."""

    name: str
    module: str
    arguments: Sequence[str] = ()


class ServiceProcess:
    """`python -P -m MODULE`, told to end by the end of its standard input.

    It is in a session of its own, so that Ctrl-C reaches the parent alone and the drain happens once and in order.
    """

    def __init__(self, launch: Launch, on_line: Callable[[str, str], None]) -> None:
        """`on_line(name, line)` gets every line of the service's log."""
        self.launch = launch
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start it; `address` is there once it serves."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *module_command(self.launch.module, ["--exit-with-stdin", *self.launch.arguments]),
            stdin=pipe, stdout=pipe, stderr=pipe, limit=MAX_LINE_BYTES, start_new_session=os.name == "posix",
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pumps = [
            asyncio.create_task(self._read_ready(self._process.stdout)),
            asyncio.create_task(self._read_log(self._process.stderr)),
        ]

    async def ended(self) -> ServiceEnded:
        """Wait for its end; what to say about it."""
        assert self._process is not None
        status = await self._process.wait()
        await asyncio.gather(*self._pumps)
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        why = "; its last lines:\n  " + "\n  ".join(list(self._lines)[-5:]) if self._lines else ""
        return ServiceEnded(f"{self.launch.name} {how}{why}")

    async def stop(self) -> None:
        """Let it drain and end; kill it when it takes too long."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.gather(*self._pumps)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _read_ready(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            address = _address_in(line)
            if address and not self.address.done():
                self.address.set_result(address)

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = readable(line.decode(errors="replace").rstrip())
            if text:
                self._lines.append(text)
                self._on_line(self.launch.name, text)


def _address_in(line: bytes) -> str:
    try:
        event = json.loads(line)
    except ValueError:
        return ""
    return str(event["address"]) if isinstance(event, dict) and event.get("event") == "ready" else ""


def readable(line: str) -> str:
    """A log line for people: level, message and what it is about of a JSON line, anything else as it is."""
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict) or "message" not in record:
        return line
    level = str(record.get("level", "INFO"))
    details = ", ".join(form.format(record[key]) for key, form in TOLD.items() if record.get(key) not in (None, ""))
    message = f"{record['message']} ({details})" if details else str(record["message"])
    return message if level == "INFO" else f"{level.lower()}: {message}"

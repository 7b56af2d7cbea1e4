"""Chat messages to a prompt, by the model's own template, in bounded time and memory."""

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, cast

from specmesh.runtime.errors import InvalidValue, UnsupportedOption

ROLES = ("system", "user", "assistant")
MEMORY_BYTES = 512 << 20
MAX_ESCAPED_CHARACTER = 12  # bytes of one character in ASCII JSON


def check_messages(messages: Sequence[tuple[str, str]]) -> None:
    """Raises `InvalidValue` naming the message."""
    if not messages:
        raise InvalidValue("chat.messages", "at least one message is needed")
    for index, (role, _content) in enumerate(messages):
        if role not in ROLES:
            raise InvalidValue(f"chat.messages[{index}].role", f"must be one of {', '.join(ROLES)}")


class ChatTemplate:
    """A template and the process that renders it, started on first use and again after it had to be killed.

    `render` blocks and may be called from any thread; calls wait for one another. Empty `source`: the model has no
    template. `render_seconds` bounds a rendering, `start_seconds` the process's start, `max_characters` the prompt.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        max_characters: int = 4 << 20,
        render_seconds: float = 5.0,
        start_seconds: float = 20.0,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._config = {
            "template": source,
            "special_tokens": dict(special_tokens),
            "max_characters": max_characters,
            "memory_bytes": MEMORY_BYTES,
        }
        self._answer_bytes = MAX_ESCAPED_CHARACTER * max_characters + 1_024
        self._render_seconds = render_seconds
        self._start_seconds = start_seconds
        self._now = now
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """The prompt for (role, content) messages, ending where the assistant's answer begins.

        Raises `UnsupportedOption` when the model has no template, and `InvalidValue` when the template refuses the
        messages, fails, takes too long or writes too much; both name `chat`.
        """
        check_messages(messages)
        if not self._config["template"]:
            raise UnsupportedOption("chat", "this model has no chat template; send text or token ids")
        conversation = [{"role": role, "content": content} for role, content in messages]
        with self._lock:
            answer = self._ask({"messages": conversation, "now": self._now().isoformat()})
        if "error" in answer:
            raise InvalidValue("chat", f"the model's chat template refused the messages: {answer['error']}")
        return answer["text"]

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._stop()

    def _ask(self, question: Mapping[str, object]) -> dict[str, str]:
        if self._process is None or self._process.poll() is not None:
            self._start()
        return self._exchange(question, self._render_seconds)

    def _start(self) -> None:
        self._stop()
        # -P: the script's own folder is no place to import from.
        command = [sys.executable, "-P", str(Path(__file__).with_name("chat_worker.py"))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._end = weakref.finalize(self, _end_process, self._process)
        self._exchange(self._config, self._start_seconds)

    def _stop(self) -> None:
        self._end()
        self._process = None

    def _exchange(self, question: Mapping[str, object], seconds: float) -> dict[str, str]:
        """One line there, one line back; the process is killed when that takes longer than `seconds`."""
        assert self._process is not None
        watchdog = threading.Timer(seconds, self._process.kill)
        watchdog.start()
        try:
            line = self._send_and_read(self._process, json.dumps(question).encode() + b"\n")
        finally:
            watchdog.cancel()
        if not line.endswith(b"\n"):
            self._stop()
            raise InvalidValue("chat", "the model's chat template took too long or too much memory")
        return cast(dict[str, str], json.loads(line))

    def _send_and_read(self, process: "subprocess.Popen[bytes]", line: bytes) -> bytes:
        try:
            stdin, stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
            stdin.write(line)
            stdin.flush()
            return stdout.readline(self._answer_bytes)
        except BrokenPipeError:
            return b""


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    """Kill and reap; the pipes are closed with it, and what was not written is lost."""
    process.kill()
    with suppress(BrokenPipeError), process:
        process.wait()

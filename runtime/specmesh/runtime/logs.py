"""Structured logs on standard error, with the trace and the request that a line belongs to.

A request's text and token ids never appear in a log. An exception's message could hold them, so of an exception only
the type and the places it passed are written.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

_trace_id: ContextVar[str] = ContextVar("trace_id", default="")
_request_id: ContextVar[str] = ContextVar("request_id", default="")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextmanager
def log_context(*, trace_id: str = "", request_id: str = "") -> Iterator[None]:
    """Lines logged inside, in this task, carry these ids."""
    tokens = _trace_id.set(trace_id or _trace_id.get()), _request_id.set(request_id or _request_id.get())
    try:
        yield
    finally:
        _trace_id.reset(tokens[0])
        _request_id.reset(tokens[1])


def configure_logging(*, json_lines: bool, level: str, stream: TextIO | None = None) -> None:
    """Send the root logger's lines to `stream` (standard error), as JSON objects or as text for people."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if json_lines else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What was passed as `extra`, and the ids of the context."""
    fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    ids = {"trace_id": _trace_id.get(), "request_id": _request_id.get()}
    return fields | {key: value for key, value in ids.items() if value}


def _failure(record: logging.LogRecord) -> dict[str, object]:
    if not record.exc_info or record.exc_info[1] is None:
        return {}
    error = record.exc_info[1]
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": f"{type(error).__module__}.{type(error).__qualname__}", "places": places}


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(line | _fields(record) | _failure(record), default=str)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = [f"{record.levelname.lower()} {record.name}: {record.getMessage()}"]
        words += [f"{key}={value}" for key, value in (_fields(record) | _failure(record)).items()]
        return " ".join(words)

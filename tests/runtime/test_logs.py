import io
import json
import logging
from collections.abc import Iterator

import pytest

from specmesh.runtime.logs import configure_logging, log_context


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back as it was afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_lines_are_json_with_the_ids_of_their_context(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging(json_lines=True, level="INFO", stream=stream)
    with log_context(trace_id="t1", request_id="r1"):
        root_logger.info("opened %d", 3, extra={"session": 7})
    root_logger.info("outside")
    root_logger.debug("unseen")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["message"] == "opened 3"
    assert (first["trace_id"], first["request_id"], first["session"]) == ("t1", "r1", 7)
    assert "trace_id" not in second
    assert second["level"] == "INFO"


@pytest.mark.parametrize("json_lines", [True, False])
def test_an_exceptions_message_is_not_logged(root_logger: logging.Logger, json_lines: bool) -> None:
    """The message may hold a request's text; the type and the places it passed say enough."""
    stream = io.StringIO()
    configure_logging(json_lines=json_lines, level="INFO", stream=stream)
    try:
        raise KeyError("the prompt's own words")
    except KeyError:
        root_logger.exception("failed")
    line = stream.getvalue()
    assert "prompt" not in line
    assert "KeyError" in line
    assert "test_logs.py" in line
    assert line.count("\n") == 1

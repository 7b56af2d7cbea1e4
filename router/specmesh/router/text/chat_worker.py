"""Renders a model's chat template, in a process of its own that its parent may kill at any moment.

The template is a program that came with the model: it may loop for ever, or build a string larger than memory in one
operation, and Python cannot interrupt either in its own process. Run as a script; imports nothing of the mesh. The
first line of standard input configures, each further line is a conversation; one line is answered to each.
"""

import json
import signal
import sys
from collections.abc import Mapping
from datetime import datetime

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    """`{% generation %}` marks what the assistant said, for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The body in a scope of its own, as transformers has it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class PromptTooLong(Exception):
    """The template wrote more characters than a prompt may have."""


def raise_exception(message: str) -> None:
    """How a template refuses a conversation."""
    raise TemplateError(message)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def limit_memory(num_bytes: int) -> None:
    """Where the system can: elsewhere time alone is bounded."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    except (ImportError, OSError, ValueError):
        return


class Renderer:
    """The template, compiled on first use: compiling folds constants, and so may fail or not end as well."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], max_characters: int) -> None:
        self._source = source
        self._special_tokens = special_tokens
        self._max_characters = max_characters
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        self._environment.filters["tojson"] = to_json
        self._environment.globals["raise_exception"] = raise_exception

    def answer(self, messages: list[dict[str, str]], now: str) -> dict[str, str]:
        """`text`, or `error`: its kind and what the template itself says, never a part of a message."""
        try:
            return {"text": self._render(messages, datetime.fromisoformat(now))}
        except Exception as error:  # noqa: BLE001 - whatever a template does is an answer
            said = str(error)
            own_words = type(error) is TemplateError and said and said in self._source
            return {"error": said if own_words else type(error).__name__}

    def _render(self, messages: list[dict[str, str]], now: datetime) -> str:
        template = self._environment.from_string(self._source, globals={"strftime_now": now.strftime})
        pieces: list[str] = []
        size = 0
        for piece in template.generate(
            messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
        ):
            pieces.append(piece)
            size += len(piece)
            if size > self._max_characters:
                raise PromptTooLong
        text = "".join(pieces)
        text.encode()  # a lone surrogate is no text
        return text


def main() -> None:
    """Answer until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this process ends
    config = json.loads(sys.stdin.readline())
    limit_memory(config["memory_bytes"])
    renderer = Renderer(config["template"], config["special_tokens"], config["max_characters"])
    print("{}", flush=True)  # noqa: T201 - the protocol
    for line in sys.stdin:
        print(json.dumps(renderer.answer(**json.loads(line))), flush=True)  # noqa: T201 - the protocol


if __name__ == "__main__":
    main()

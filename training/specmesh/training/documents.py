"""Text from files: which sources there are, and clean paragraphs of prose or files of code out of them."""

import gzip
import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

_MIN_CHARACTERS = 400
_MAX_CHARACTERS = 200_000
_MIN_PARAGRAPH = 120


@dataclass(frozen=True, slots=True)
class Source:
    """A set of files under one licence."""

    name: str
    domain: str
    licence: str
    root: str
    globs: Sequence[str]
    max_bytes: int
    exclude: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """One file's text; `name` is the same on every machine and decides whether it is held out."""

    name: str
    domain: str
    text: str


def read_sources(path: Path) -> list[Source]:
    """The sources listed in a TOML file."""
    entries = tomllib.loads(path.read_text())["source"]
    return [Source(**entry) for entry in entries]


def read_documents(source: Source, places: Mapping[str, str]) -> Iterator[Document]:
    """The source's documents, in an order that depends on their names only, up to `max_bytes` of clean text."""
    root = Path(source.root.format(**places))
    names = {path.relative_to(root).as_posix(): path for glob in source.globs for path in root.glob(glob)}
    taken = 0
    for name in sorted(names, key=_shuffled):
        if taken >= source.max_bytes or any(part in f"/{name}" for part in source.exclude):
            continue
        text = _clean(names[name], source.domain)
        if len(text) < _MIN_CHARACTERS:
            continue
        taken += len(text)
        yield Document(f"{source.name}:{name}", source.domain, text)


def _shuffled(name: str) -> bytes:
    return hashlib.blake2b(name.encode()).digest()


def _clean(path: Path, domain: str) -> str:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode("utf-8", errors="replace").replace("\r\n", "\n")
    if domain == "code":
        return text if _is_written_code(text) else ""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix in {".html", ".page"}:
        text = _without_markup(text)
    elif suffix == ".pod":
        text = re.sub(r"[A-Z]<+ ?([^<>]*?) ?>+", r"\1", re.sub(r"^=\w+.*$", "", text, flags=re.MULTILINE))
    return prose_paragraphs(text)


def _is_written_code(text: str) -> bool:
    """Neither tiny, nor huge, nor a table of numbers in disguise."""
    digits = sum(character.isdigit() for character in text)
    longest = max((len(line) for line in text.splitlines()), default=0)
    return len(text) < _MAX_CHARACTERS and digits < 0.15 * len(text) and longest < 1000


def prose_paragraphs(text: str) -> str:
    """The paragraphs that read as sentences, each on one line, with a blank line between them."""
    kept = []
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split())
        letters = sum(character.isalpha() or character == " " for character in paragraph)
        if len(paragraph) >= _MIN_PARAGRAPH and letters > 0.92 * len(paragraph) and paragraph[-1] in '.?!:"':
            kept.append(paragraph)
    return "\n\n".join(kept)


class _Paragraphs(HTMLParser):
    """Collects the text of an HTML or Mallard page, a blank line at each block."""

    _BLOCKS = frozenset(
        [
            "p",
            "div",
            "li",
            "ul",
            "ol",
            "dl",
            "dt",
            "dd",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
            "table",
            "tr",
            "td",
            "th",
            "section",
            "item",
            "note",
            "title",
        ]
    )
    _SKIPPED = frozenset(["script", "style", "pre", "nav", "head", "header", "footer", "screen"])

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._skipping = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._SKIPPED:
            self._skipping += 1
        elif tag in self._BLOCKS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._SKIPPED:
            self._skipping = max(0, self._skipping - 1)
        elif tag in self._BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.parts.append(data)


def _without_markup(text: str) -> str:
    parser = _Paragraphs()
    parser.feed(text)
    parser.close()
    return "".join(parser.parts)

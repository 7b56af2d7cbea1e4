"""Token strings to text, one token at a time: each decoder of `tokenizers` as a stage with little or no memory.

What comes out of a chain of stages, joined, equals what `tokenizers` gives for the whole sequence (tested), invalid
bytes included. Work per token does not grow with the text.

`tokenizers.decoders.DecodeStream` is not used: it raises when bytes it has shown as characters turn out to be part of
an invalid run (byte fallback: `x`, `<0x41>`, `<0xE2>`, `x`), which a model may well sample.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
CLEANUPS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


class UnsupportedDecoder(ValueError):
    """A tokenizer whose text cannot be produced as it is generated."""


class Stage(Protocol):
    """One decoder. `finish` gives what was held back."""

    def push(self, piece: str) -> list[str]:
        """Pieces that `piece` settles."""

    def finish(self) -> list[str]:
        """Pieces still held."""


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


ALPHABET = byte_level_alphabet()


class ByteLevel:
    """Bytes in printable disguise; characters come out when they are whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: str) -> list[str]:
        """A token with a character outside the alphabet (an added token) stands for itself."""
        try:
            raw = bytes([ALPHABET[character] for character in piece])
        except KeyError:
            raw = piece.encode()
        return [self._decoder.decode(raw)]

    def finish(self) -> list[str]:
        """An incomplete character becomes U+FFFD."""
        return [self._decoder.decode(b"", final=True)]


class ByteFallback:
    """Runs of `<0xE2>` tokens are one piece; a run that is not UTF-8 is one U+FFFD per byte.

    The run is held until it ends, since one bad byte changes all of it.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, piece: str) -> list[str]:
        """Ends the run unless `piece` belongs to it."""
        if match := BYTE_TOKEN.fullmatch(piece):
            self._run.append(int(match[1], 16))
            return []
        return [*self.finish(), piece]

    def finish(self) -> list[str]:
        """The run as text."""
        run, self._run = bytes(self._run), bytearray()
        if not run:
            return []
        try:
            return [run.decode()]
        except UnicodeDecodeError:
            return ["\ufffd" * len(run)]


class Each:
    """A decoder that looks at one piece at a time and at whether it is the first."""

    def __init__(self, change: Callable[[str, bool], str]) -> None:
        self._change = change
        self._first = True

    def push(self, piece: str) -> list[str]:
        """The changed piece."""
        first, self._first = self._first, False
        return [self._change(piece, first)]

    def finish(self) -> list[str]:
        """Nothing is held."""
        return []


class StripStart:
    """Takes up to `count` leading `content` characters off the text as a whole."""

    def __init__(self, content: str, count: int) -> None:
        self._content = content
        self._left = count

    def push(self, piece: str) -> list[str]:
        """What is left of `piece`; the first other character ends the stripping."""
        while self._left and piece:
            if piece[0] != self._content:
                self._left = 0
            else:
                piece = piece[1:]
                self._left -= 1
        return [piece]

    def finish(self) -> list[str]:
        """Nothing is held."""
        return []


class WordSuffix:
    """`</w>` becomes a space, but at the end of the text nothing: the last piece is held."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._held: str | None = None

    def push(self, piece: str) -> list[str]:
        """The piece before, now known not to be the last."""
        held, self._held = self._held, piece
        return [] if held is None else [held.replace(self._suffix, " ")]

    def finish(self) -> list[str]:
        """The last piece."""
        held, self._held = self._held, None
        return [] if held is None else [held.replace(self._suffix, "")]


def _join_by_space(piece: str, first: bool) -> str:
    return piece if first else f" {piece}"


def _metaspace(replacement: str, drop_first: bool) -> Callable[[str, bool], str]:
    return lambda piece, first: piece.replace(replacement, "" if first and drop_first else " ")


def _word_piece(prefix: str, cleanup: bool) -> Callable[[str, bool], str]:
    def change(piece: str, first: bool) -> str:
        if not first:
            piece = piece[len(prefix) :] if piece.startswith(prefix) else f" {piece}"
        for old, new in CLEANUPS if cleanup else ():
            piece = piece.replace(old, new)
        return piece

    return change


def _strip_piece(content: str, start: int, stop: int) -> Callable[[str, bool], str]:
    def change(piece: str, first: bool) -> str:
        del first
        leading = len(piece) - len(piece.lstrip(content))
        trailing = len(piece) - len(piece.rstrip(content))
        return piece[min(leading, start) : max(len(piece) - min(trailing, stop), min(leading, start))]

    return change


def _replace(config: Mapping[str, Any]) -> Callable[[str, bool], str]:
    if "String" not in config["pattern"]:
        raise UnsupportedDecoder("a Replace decoder with a regular expression is not supported")
    old, new = config["pattern"]["String"], config["content"]
    return lambda piece, _first: piece.replace(old, new)


def _stage(config: Mapping[str, Any], fused: bool) -> Stage | None:
    """One decoder of a `tokenizer.json`; `fused`: an earlier one made a single piece of everything. None: no effect."""
    match config["type"], fused:
        case "Fuse", _:
            return None
        case "Strip", True if config["stop"] == 0:
            return StripStart(config["content"], config["start"])
        case "ByteLevel", False:
            return ByteLevel()
        case "ByteFallback", False:
            return ByteFallback()
        case "BPEDecoder", False:
            return WordSuffix(config["suffix"])
        case "Replace", False:
            return Each(_replace(config))
        case "Strip", False:
            return Each(_strip_piece(config["content"], config["start"], config["stop"]))
        case "Metaspace", False:
            return Each(_metaspace(config["replacement"], config.get("prepend_scheme", "always") != "never"))
        case "WordPiece", False:
            return Each(_word_piece(config["prefix"], config["cleanup"]))
    raise UnsupportedDecoder(f"decoder {config['type']} is not supported" + (" after Fuse" if fused else ""))


def build_stages(decoder: Mapping[str, Any] | None) -> Sequence[Stage]:
    """Stages for the `decoder` of a `tokenizer.json`. Raises `UnsupportedDecoder` when it has no incremental form."""
    if decoder is None:
        return [Each(_join_by_space)]
    configs = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    stages: list[Stage] = []
    fused = False
    for config in configs:
        stage = _stage(config, fused)
        if stage is not None:
            stages.append(stage)
        fused = fused or config["type"] in ("Fuse", "ByteLevel")
    return stages

"""Stop strings: found in any split of the text, no prefix of one ever shown, nothing lost."""

from collections.abc import Sequence

from specmesh.runtime.errors import InvalidValue
from specmesh.runtime.types import MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS


def check_stop_strings(strings: Sequence[str]) -> None:
    """Raises `InvalidValue` naming `stop.strings` or the entry that is empty or too long."""
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidValue("stop.strings", f"at most {MAX_STOP_STRINGS}, got {len(strings)}")
    for index, string in enumerate(strings):
        length = len(string.encode())
        if not 1 <= length <= MAX_STOP_STRING_BYTES:
            raise InvalidValue(f"stop.strings[{index}]", f"must be 1 to {MAX_STOP_STRING_BYTES} bytes, got {length}")


class StopMatcher:
    """Text passes through it; what may be the beginning of a stop string stays until that is decided.

    The stop that is complete first wins, and of those complete at the same character the longest. So the outcome does
    not depend on how the text is split. Knuth-Morris-Pratt per string: constant time per character.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        check_stop_strings(strings)
        self.matched: str | None = None
        self._strings = sorted(set(strings), key=len, reverse=True)
        self._failures = [_failure_function(string) for string in self._strings]
        self._states = [0] * len(self._strings)
        self._held = ""

    def push(self, text: str) -> str:
        """The part of what is held and `text` that may be shown; after a match, nothing any more."""
        if self.matched is not None:
            return ""
        if not self._strings:
            return text
        held = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            if (stop := self._advance(character)) is not None:
                self.matched, self._held = stop, ""
                return held[: end - len(stop)]
        keep = max(self._states)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """What was held; no stop string can come of it any more."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """Move every string's state by one character; the longest string that is now complete."""
        complete = None
        for index, (string, failure) in enumerate(zip(self._strings, self._failures, strict=True)):
            state = self._states[index]
            while state and string[state] != character:
                state = failure[state - 1]
            state += string[state] == character
            self._states[index] = state
            if state == len(string) and complete is None:
                complete = string
        return complete


def _failure_function(string: str) -> list[int]:
    """Length of the longest proper border of each prefix."""
    failure = [0] * len(string)
    border = 0
    for index in range(1, len(string)):
        while border and string[border] != string[index]:
            border = failure[border - 1]
        border += string[border] == string[index]
        failure[index] = border
    return failure

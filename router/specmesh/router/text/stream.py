"""The text of one session as its tokens come."""

from collections.abc import Sequence
from dataclasses import dataclass

from specmesh.router.text.detokenizer import Detokenizer
from specmesh.router.text.stops import StopMatcher


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text to show now, the stop string that ended the text, and how many tokens of the push count."""

    text: str
    stop: str | None
    num_tokens: int


class TextStream:
    """Detokenizer and stop strings behind one another.

    A stop token's text is not shown: leave it out of `push`. To resume, push what was already sent and drop the text.
    """

    def __init__(self, detokenizer: Detokenizer, matcher: StopMatcher) -> None:
        self._detokenizer = detokenizer
        self._matcher = matcher

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text."""
        return self._matcher.matched

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Tokens after the one that completed a stop string do not count; after a match none does."""
        shown: list[str] = []
        num_tokens = 0
        for token_id in token_ids:
            if self.stop is not None:
                break
            num_tokens += 1
            shown.append(self._matcher.push(self._detokenizer.push(token_id)))
        return TextDelta("".join(shown), self.stop, num_tokens)

    def finish(self) -> str:
        """What was held back; nothing after a match. `stop` may be set by this: look at it afterwards."""
        if self.stop is not None:
            return ""
        return self._matcher.push(self._detokenizer.finish()) + self._matcher.finish()

"""Tokens to text as they come: whole characters only, special tokens unseen."""

from collections.abc import Callable, Iterable, Sequence

from specmesh.router.text.decoding import Stage


class Detokenizer:
    """One text. `token_of` gives the string of an id, None for ids that show nothing (special or unknown)."""

    def __init__(self, token_of: Callable[[int], str | None], stages: Sequence[Stage]) -> None:
        self._token_of = token_of
        self._stages = stages

    def push(self, token_id: int) -> str:
        """Text that this token settles; empty while a character is not whole."""
        token = self._token_of(token_id)
        return "" if token is None else self._through([token], self._stages)

    def finish(self) -> str:
        """What was held back; an incomplete character becomes U+FFFD."""
        return "".join(self._through(stage.finish(), self._stages[i + 1 :]) for i, stage in enumerate(self._stages))

    @staticmethod
    def _through(pieces: Iterable[str], stages: Sequence[Stage]) -> str:
        for stage in stages:
            pieces = [changed for piece in pieces for changed in stage.push(piece)]
        return "".join(pieces)

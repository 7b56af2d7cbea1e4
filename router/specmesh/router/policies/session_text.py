"""What one session's text tells of the arms: their scores, replayed."""

import math
from collections import deque
from collections.abc import Sequence

from specmesh.router.policies.interface import Arm, ArmScores
from specmesh.router.policies.replay import Evidence, Replay
from specmesh.runtime.types import Rule

SESSION_FADE = 0.985
"""Per token: a session that changes its topic is known anew after some seventy."""
MAX_LOG_RATIO = 40.0
MAX_UNSCORED = 1024
"""Emitted tokens whose scores may still come."""


class _ArmInText:
    """One arm along the text, as far as it has been scored without a gap."""

    __slots__ = ("evidence", "next_position", "replay")

    def __init__(self, longest: int, by_block: bool) -> None:
        self.evidence = Evidence(longest, SESSION_FADE)
        self.replay = Replay(longest, by_block=by_block)
        self.next_position = -1


class SessionText:
    """The tokens that a session has emitted and what arms said of them."""

    def __init__(self, longest: int, *, rule: Rule, greedy: bool) -> None:
        """`longest`: block length up to which is replayed."""
        self._longest = longest
        self._by_block = rule is Rule.BLOCK
        self._has_bits = rule is Rule.COUPLED and not greedy
        self._is_certain = self._has_bits or greedy
        """The target's own law is one-hot on what it emitted."""
        self._end = 0
        self._logprobs: deque[float] = deque(maxlen=MAX_UNSCORED)
        self._arms: dict[Arm, _ArmInText] = {}

    def emit(self, position: int, num_tokens: int, logprobs: Sequence[float]) -> None:
        """A step that began at `position` emitted tokens with these ln T."""
        if position != self._end:
            self._logprobs.clear()
        if self._is_certain:
            self._logprobs.extend([0.0] * num_tokens)
        else:
            self._logprobs.extend(logprobs if len(logprobs) == num_tokens else [math.nan] * num_tokens)
        self._end = position + num_tokens

    def score(self, arm: Arm, scores: ArmScores) -> list[list[float]]:
        """Replay what an arm says; of each token that is new, what `Replay.feed` returns."""
        known = self._arms.setdefault(arm, _ArmInText(self._longest, self._by_block))
        replayed: list[list[float]] = []
        begin = self._end - len(self._logprobs)
        for position in range(max(scores.start, known.next_position, begin), scores.start + len(scores.logprobs)):
            ratio = self._ratio(position, scores)
            if ratio is None:
                continue
            if position != known.next_position:  # what lies between is not known: a step may start here
                known.replay = Replay(self._longest, by_block=self._by_block)
            known.next_position = position + 1
            replayed.append(known.replay.feed(ratio))
        known.evidence.add(replayed)
        return replayed

    def evidence(self, arm: Arm) -> Evidence | None:
        """What is known of an arm on this text."""
        known = self._arms.get(arm)
        return known.evidence if known else None

    def _ratio(self, position: int, scores: ArmScores) -> float | None:
        """D/T of the token at `position`; None when it is not known."""
        offset = position - scores.start
        if position >= self._end:
            return None
        if self._has_bits:
            return float(scores.guessed[offset]) if offset < len(scores.guessed) else None
        difference = min(scores.logprobs[offset], 0.0) - self._logprobs[position - self._end]
        return None if math.isnan(difference) else math.exp(min(difference, MAX_LOG_RATIO))

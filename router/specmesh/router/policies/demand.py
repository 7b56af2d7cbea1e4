"""Which arms a step would choose if they were not busy: what pools are scaled by. Pure.

An overloaded arm is slow, so it is not chosen, so nobody would see that more of it were of use. Each arm is therefore
weighed at the time its blocks take when nothing waits, against everything else as it is now. An arm without a replica
is weighed by what is remembered of it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from specmesh.router.policies.interface import Arm, ArmView, Choice, StepView
from specmesh.router.policies.planner import LEAST_SECONDS, Option, best_length, best_option

DOWN, UP = 0.2, 0.001
"""How far an estimate goes towards a quicker block and a slower one: it stays near the quickest of a thousand."""


class UnloadedTimes:
    """Seconds that an arm computes for a drafted token when it is not busy, from what it says of its blocks."""

    def __init__(self) -> None:
        self.seconds: dict[Arm, float] = {}

    def add(self, blocks: Iterable[tuple[Arm | None, int, int]]) -> None:
        """Blocks: the arm, the nanoseconds that it computed without what it waited for its turn, and the tokens."""
        seconds = self.seconds
        for arm, nanoseconds, num_tokens in blocks:
            if arm is not None and nanoseconds > 0 and num_tokens > 0:
                sample = nanoseconds / num_tokens / 1e9
                known = seconds.get(arm, sample)
                seconds[arm] = known + (sample - known) * (DOWN if sample < known else UP)


def arms_in_demand(
    present: Mapping[Arm | None, Option],
    tokens: Mapping[Arm, Sequence[float]],
    rest: tuple[float, float],
    unloaded: Mapping[Arm, float],
) -> frozenset[Arm]:
    """Arms of `tokens` that would be chosen at their `unloaded` seconds a token, each against the others as they are.

    `present`: what can be chosen now, plain decoding (None) among it. `tokens[arm][k - 1]`: emitted on average by a
    step at block length k. `rest`: (seconds, seconds for each drafted token) of a step that are not the draft's own.
    """
    return frozenset(
        arm
        for arm, expected in tokens.items()
        if _wins(
            _at_best(arm, expected, rest, unloaded.get(arm), present.get(arm)),
            [option for other, option in present.items() if other != arm],
        )
    )


def _wins(option: Option | None, rivals: Sequence[Option]) -> bool:
    return option is not None and best_option([*rivals, option]) is option


def _at_best(
    arm: Arm, tokens: Sequence[float], rest: tuple[float, float], unloaded: float | None, present: Option | None
) -> Option | None:
    """The arm when it is not busy: never worse than it is now. None when no time of it is known."""
    if unloaded is None:
        return present
    seconds, per_token = rest[0], rest[1] + unloaded
    length = best_length(tokens, seconds, per_token)
    option = Option(Choice(arm, length), tokens[length - 1], max(seconds + length * per_token, LEAST_SECONDS))
    return option if present is None or option.goodput >= present.goodput else present


@runtime_checkable
class KnowsDemand(Protocol):
    """A policy that can say which arms it would choose. Of others a step's choice is all that is known."""

    def in_demand(self, view: StepView, absent: Sequence[ArmView], unloaded: Mapping[Arm, float]) -> Collection[Arm]:
        """Arms of `view`, and of `absent`, which have no replica that is ready, that this step would choose, each at
        its `unloaded` seconds for a drafted token. Changes nothing.
        """

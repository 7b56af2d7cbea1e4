"""What of each session's context one forward takes in. Plain Python over plain objects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specmesh.draft.drafter import Turn


@dataclass(frozen=True, slots=True)
class Meal:
    """`tokens[start:stop]` of a turn are fed, and logits are wanted of those from `first_row` on (`stop`: of none).

    Not `complete`: a chunk of a long context; the same turn comes again.
    """

    turn: Turn
    start: int
    stop: int
    first_row: int
    complete: bool


@dataclass(frozen=True, slots=True)
class FeedingLimits:
    """`chunk_tokens`: taken from long contexts in one forward, all sessions together. `max_prefills`: such sessions."""

    chunk_tokens: int
    max_prefills: int


def plan_meals(turns: Sequence[Turn], cached: Callable[[int], int], limits: FeedingLimits) -> list[Meal | None]:
    """A meal for every turn, None for those that must wait: long contexts beyond the limits, the last to come.

    A context is long when more than `chunk_tokens` of it are not cached. It is fed in chunks without logits until it
    is not long any more. So no session waits for another's prompt longer than a chunk takes. Tokens whose logits are
    wanted are never split.
    """
    budget, num_prefills = limits.chunk_tokens, 0
    meals: list[Meal | None] = []
    for turn in turns:
        meal = _whole(turn, cached(turn.session_id))
        if meal.stop - meal.start > limits.chunk_tokens and meal.first_row > meal.start:
            size = min(budget, meal.first_row - meal.start) if num_prefills < limits.max_prefills else 0
            budget -= size
            num_prefills += 1
            stop = meal.start + size
            meals.append(Meal(turn, meal.start, stop, stop, complete=False) if size else None)
        else:
            meals.append(meal)
    return meals


def _whole(turn: Turn, cached: int) -> Meal:
    """All that is missing, from further back if logits are wanted of tokens that are cached already."""
    stop = len(turn.tokens)
    first_row = stop - 1 if turn.num_wanted else stop
    if turn.score_from is not None and turn.score_from < turn.block_start:
        first_row = min(first_row, max(turn.score_from - 1, 0))
    return Meal(turn, min(cached, first_row), stop, first_row, complete=True)

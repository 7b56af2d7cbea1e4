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


WARM_TOKENS = 32
"""More than a step brings: what misses no more of its context is warm, and never waits."""


def plan_meals(turns: Sequence[Turn], cached: Callable[[int], int], chunk_tokens: int) -> list[Meal | None]:
    """A meal for every turn, None for those that must wait, the last to come first.

    `chunk_tokens` are taken in one forward from sessions that are not warm, all together: what is missing of a context
    is fed in chunks without logits until the rest fits. So no session waits for the prompts of others longer than a
    chunk takes, however many come at once. Tokens whose logits are wanted are never split; more of them than a chunk
    are taken by a forward with no other chunk.
    """
    budget = chunk_tokens
    meals: list[Meal | None] = []
    for turn in turns:
        meal: Meal | None = _whole(turn, cached(turn.session_id))
        if meal is not None and _size(meal) > min(WARM_TOKENS, chunk_tokens):
            meal = _portion(meal, budget, nothing_taken=budget == chunk_tokens)
            budget -= _size(meal)
        meals.append(meal)
    return meals


def _size(meal: Meal | None) -> int:
    return 0 if meal is None else meal.stop - meal.start


def _portion(meal: Meal, budget: int, *, nothing_taken: bool) -> Meal | None:
    """As much of a meal as `budget` allows; None when that is nothing."""
    if _size(meal) <= budget:
        return meal
    stop = meal.start + min(budget, meal.first_row - meal.start)
    if stop > meal.start:
        return Meal(meal.turn, meal.start, stop, stop, complete=False)
    return meal if nothing_taken else None


def _whole(turn: Turn, cached: int) -> Meal:
    """All that is missing, from further back if logits are wanted of tokens that are cached already."""
    stop = len(turn.tokens)
    first_row = stop - 1 if turn.num_wanted else stop
    if turn.score_from is not None and turn.score_from < turn.block_start:
        first_row = min(first_row, max(turn.score_from - 1, 0))
    return Meal(turn, min(cached, first_row), stop, first_row, complete=True)

"""From a model's logits to proposals and scores: what `specmesh.draft.hf` says, once it has done a forward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from specmesh.draft.drafter import DrafterInfo, Proposal, Score
from specmesh.draft.feeding import Meal
from specmesh.draft.kernel_input import draft_input
from specmesh.kernels.ops import draft_step, score_tokens


@dataclass(frozen=True, slots=True)
class Head:
    """What a model's logits [n, W] are of: `token_map` [W] ascending, or the ids from 0; others are padding."""

    vocabulary_size: int
    token_map: Tensor | None


class Voice(Protocol):
    """Says something of every meal. `logits`: the rows that the meals asked for, in order."""

    def info(self, own: DrafterInfo) -> DrafterInfo:
        """What the draft is, `own` being what its model is."""
        ...

    def scores(self, meals: Sequence[Meal], logits: Tensor) -> list[Score]:
        """Of all delta tokens of all meals that are complete. Called before `proposals`."""
        ...

    def proposals(self, meals: Sequence[Meal], logits: Tensor) -> list[Proposal | None]:
        """Of the complete meals that want a token; None where the logits were not finite."""
        ...

    def truncate(self, session_id: int, length: int) -> None:
        """The session's tokens beyond `length` are no more."""
        ...

    def release(self, session_id: int) -> None:
        """Forget a session."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """A token to propose or score, in `meal`; `row` of the logits tells of it (None: nothing does)."""

    meal: Meal
    length: int
    """Of the context before it."""
    row: int | None


class ModelVoice:
    """The model's own law, by the kernels."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def info(self, own: DrafterInfo) -> DrafterInfo:
        """The model alone."""
        return own

    def scores(self, meals: Sequence[Meal], logits: Tensor) -> list[Score]:
        """Of all delta tokens; the first token of a context has no row to be in."""
        places = scored_places(meals)
        inputs, tokens = [], []
        for place in places:
            turn = place.meal.turn
            if place.row is not None:
                inputs.append(draft_input(turn, place.length - turn.block_start, turn.counts_before(place.length)))
                tokens.append(turn.tokens[place.length])
        said = iter(score_tokens(rows_of(logits, places), inputs, tokens, **self._kernel_head()))
        return [Score(-math.inf, False) if place.row is None else Score(*next(said)) for place in places]

    def proposals(self, meals: Sequence[Meal], logits: Tensor) -> list[Proposal | None]:
        """All in one batch."""
        places = wanted_places(meals)
        turns = [place.meal.turn for place in places]
        inputs = [draft_input(turn, turn.offset, turn.token_counts) for turn in turns]
        tokens = draft_step(rows_of(logits, places), inputs, **self._kernel_head())
        return [Proposal(token.token_id, token.row, token.logprob) if token.finite else None for token in tokens]

    def truncate(self, session_id: int, length: int) -> None:
        """Nothing is kept of a session."""

    def release(self, session_id: int) -> None:
        """Nothing is kept of a session."""

    def _kernel_head(self) -> dict[str, Any]:
        return {"vocabulary_size": self._head.vocabulary_size, "token_map": self._head.token_map}


def scored_places(meals: Sequence[Meal]) -> list[Place]:
    """Of all delta tokens that are to be scored; the first token of a context has no row to be in."""
    places, row = [], 0
    for meal in meals:
        first = meal.turn.score_from
        if meal.complete and first is not None:
            rows = {length: row + length - 1 - meal.first_row for length in range(max(first, 1), meal.turn.block_start)}
            places += [Place(meal, length, rows.get(length)) for length in range(first, meal.turn.block_start)]
        row += meal.stop - meal.first_row
    return places


def wanted_places(meals: Sequence[Meal]) -> list[Place]:
    """Of all tokens that are to be proposed: the last row of each meal that wants one."""
    places, row = [], 0
    for meal in meals:
        row += meal.stop - meal.first_row
        if meal.complete and meal.turn.num_wanted:
            places.append(Place(meal, meal.stop, row - 1))
    return places


def rows_of(logits: Tensor, places: Sequence[Place]) -> Tensor:
    """The rows [n, W] of places that have one, in order."""
    rows = [place.row for place in places if place.row is not None]
    return logits if len(rows) == len(logits) else logits[rows]

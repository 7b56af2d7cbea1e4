"""A model that learns from the session: its law mixed with what followed earlier in the same context.

`specmesh.draft.past` says how. P_0 is the model's law of its likeliest ids, and the weights come with the model.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from specmesh.draft.drafter import DrafterInfo, Proposal, Score, Turn
from specmesh.draft.feeding import Meal
from specmesh.draft.lookup import MatchIndex
from specmesh.draft.past import PastMixture, with_past
from specmesh.draft.saying import propose, score
from specmesh.draft.sparse_law import Law
from specmesh.draft.voice import Head, Place, rows_of, scored_places, wanted_places
from specmesh.runtime.contract import DEFAULT_MAX_ROW

OWN_IDS = DEFAULT_MAX_ROW
"""So many of the model's likeliest ids enter the mixture; no row is longer."""


class ContextVoice:
    """Keeps an index of each session's tokens, as prompt lookup does; on the CPU."""

    def __init__(self, head: Head, weights: Sequence[float]) -> None:
        """`weights`: a_1, a_2, ... of the mixture."""
        self._head = head
        self._weights = weights
        self._past = PastMixture(weights)
        self._indices: dict[int, MatchIndex] = {}

    def info(self, own: DrafterInfo) -> DrafterInfo:
        """Another arm than the model alone, and more bytes a token."""
        return with_past(own, self._weights)

    def scores(self, meals: Sequence[Meal], logits: Tensor) -> list[Score]:
        """Of all delta tokens, each by the past before it."""
        places = scored_places(meals)
        for place in places:
            self._index(place.meal.turn).resize(place.length)
        laws = iter(own_laws(rows_of(logits, places), self._head))
        return [self._score(place, None if place.row is None else next(laws)) for place in places]

    def proposals(self, meals: Sequence[Meal], logits: Tensor) -> list[Proposal | None]:
        """One a meal that wants one."""
        places = wanted_places(meals)
        laws = own_laws(rows_of(logits, places), self._head)
        return [self._propose(place, law) for place, law in zip(places, laws, strict=True)]

    def truncate(self, session_id: int, length: int) -> None:
        """The session's tokens beyond `length` are no more."""
        if session_id in self._indices:
            self._indices[session_id].resize(length)

    def release(self, session_id: int) -> None:
        """Forget a session."""
        self._indices.pop(session_id, None)

    def _score(self, place: Place, own: Law | None) -> Score:
        if own is None:
            return Score(-math.inf, False)
        index = self._fed(place.meal.turn, place.length)
        return score(self._past.law(own, index), place.meal.turn, place.length)

    def _propose(self, place: Place, own: Law | None) -> Proposal | None:
        if own is None:
            return None
        index = self._fed(place.meal.turn, place.length)
        return propose(self._past.law(own, index), place.meal.turn, place.meal.turn.offset)

    def _fed(self, turn: Turn, length: int) -> MatchIndex:
        """The session's index with the first `length` tokens of the turn."""
        index = self._index(turn)
        for token in turn.tokens[len(index.tokens) : length]:
            index.push(token)
        return index

    def _index(self, turn: Turn) -> MatchIndex:
        index = self._indices.get(turn.session_id)
        if index is None:
            index = self._indices[turn.session_id] = MatchIndex(self._past.settings)
        return index


def own_laws(logits: Tensor, head: Head) -> list[Law | None]:
    """The model's law by id at temperature 1, of its likeliest ids; None where the logits [n, W] are not finite."""
    columns = head.vocabulary_size if head.token_map is None else int((head.token_map < head.vocabulary_size).sum())
    probs, at = logits[:, :columns].float().softmax(-1).topk(min(OWN_IDS, columns))
    ids = at if head.token_map is None else head.token_map[at]
    laws: list[Law | None] = []
    for row_ids, row_probs in zip(ids.tolist(), (probs / probs.sum(-1, keepdim=True)).tolist(), strict=True):
        law = {token: prob for token, prob in zip(row_ids, row_probs, strict=True) if prob > 0}
        laws.append(law if math.isfinite(row_probs[0]) else None)
    return laws

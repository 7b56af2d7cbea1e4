"""A table that learns from the session: its counts mixed with what followed earlier in the same context.

`specmesh.draft.past` says how; P_0 is the table's distribution, and the weights come with the table.
"""

import math
from collections.abc import Sequence

from specmesh.draft.drafter import Advance, DrafterInfo, Proposal, Score, Turn
from specmesh.draft.lookup import MatchDrafter, MatchIndex
from specmesh.draft.ngram_file import MAX_ORDER, NgramTable
from specmesh.draft.past import PastMixture, with_past
from specmesh.draft.saying import propose, score
from specmesh.draft.sparse_law import Law
from specmesh.runtime.types import DraftEndReason


class ContextMixture:
    """The law of the next token from a table and the context's own past."""

    def __init__(self, table: NgramTable, weights: Sequence[float]) -> None:
        self._table = table
        self._past = PastMixture(weights)
        self.settings = self._past.settings

    def law(self, index: MatchIndex) -> Law:
        """Probability by id of what follows the context in `index`; empty where nothing is known."""
        found = self._table.find(index.tokens[-MAX_ORDER:])
        own: Law = {}
        if found is not None:
            ids, probs = found[0].distribution(found[1])
            own = dict(zip(ids.tolist(), probs.tolist(), strict=True))
        return self._past.law(own, index)


class AdaptiveTableDrafter(MatchDrafter):
    """Kind `table`, with the session's own past."""

    def __init__(self, table: NgramTable, weights: Sequence[float], info: DrafterInfo) -> None:
        """`info`: of the table alone; this one is another arm."""
        self._mixture = ContextMixture(table, weights)
        super().__init__(self._mixture.settings)
        self.info = with_past(info, weights)

    def _advance(self, turn: Turn, index: MatchIndex) -> Advance:
        scores = self._feed(index, turn)
        proposals: list[Proposal] = []
        for offset in range(turn.offset, turn.offset + turn.num_wanted):
            law = self._mixture.law(index)
            if not law:
                return Advance(proposals=proposals, end=DraftEndReason.CONFIDENCE, scores=scores)
            proposals.append(propose(law, turn, offset))
            index.push(proposals[-1].token_id)
        return Advance(proposals=proposals, scores=scores)

    def _feed(self, index: MatchIndex, turn: Turn) -> tuple[Score, ...]:
        """Push what the index lacks; what is to be scored is scored before it is pushed."""
        first = len(turn.tokens) if turn.score_from is None else turn.score_from
        index.resize(first)
        scores = []
        for length in range(len(index.tokens), len(turn.tokens)):
            if length >= first:
                law = self._mixture.law(index)
                scores.append(score(law, turn, length) if law else Score(-math.inf, False))
            index.push(turn.tokens[length])
        return tuple(scores)

"""A table that learns from the session: its counts mixed with what followed earlier in the same context.

P_0 is the table's distribution; with c(w) and n the counts of what followed the context's last m tokens earlier on,
P_m(w) = (c(w) + a_m P_{m-1}(w)) / (n + a_m) for m = 1, 2, ... as far as they occurred before (hierarchical Dirichlet
smoothing: MacKay and Peto, "A hierarchical Dirichlet language model", 1995). The weights a_m come with the table. So it
says what prompt lookup says where the text repeats itself, and what the table says elsewhere.
The counts are soft state, rebuilt from the tokens when they are gone, and the row is whatever this law makes of them.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specmesh.draft.drafter import Advance, DrafterInfo, Proposal, Score, Turn
from specmesh.draft.kernel_input import draft_input
from specmesh.draft.lookup import BYTES_PER_TOKEN, LookupSettings, MatchDrafter, MatchIndex
from specmesh.draft.ngram_file import MAX_ORDER, NgramTable
from specmesh.draft.sparse_law import SparseRow, coupled_guess, is_plain, likeliest
from specmesh.kernels.ops import Distribution, sample_sparse, score_sparse
from specmesh.runtime.philox import draft_draw
from specmesh.runtime.types import DraftEndReason, Rule

USUAL_WEIGHTS = (4.0, 0.1, *[0.3] * 6)
"""a_1, a_2, ...: fitted to what a small language model writes (`docs/distilling.md`)."""
MAX_OCCURRENCES = 32
"""Of the context's last token, the latest first; more find nothing better."""


class ContextMixture:
    """The law of the next token from a table and the context's own past."""

    def __init__(self, table: NgramTable, weights: Sequence[float]) -> None:
        self._table = table
        self._weights = weights
        self.settings = LookupSettings(min_match=1, max_match=len(weights), max_candidates=MAX_OCCURRENCES)

    def law(self, index: MatchIndex) -> dict[int, float]:
        """Probability by id of what follows the context in `index`; empty where nothing is known."""
        matches = index.matches()
        counts = [0] * (len(self._weights) + 1)
        for length, _ in matches:
            counts[length] += 1
        shares, left = self._shares(counts)
        found = self._table.find(index.tokens[-MAX_ORDER:])
        law: dict[int, float] = {}
        if found is not None:
            ids, probs = found[0].distribution(found[1])
            law = dict(zip(ids.tolist(), (probs * left).tolist(), strict=True))
        for length, token in matches:
            law[token] = law.get(token, 0.0) + shares[length]
        return law

    def _shares(self, counts: list[int]) -> tuple[list[float], float]:
        """(share of one occurrence by the length of its match, share left to the table). `counts` by length."""
        shares, left, longer = [0.0] * len(counts), 1.0, 0
        for length in range(len(counts) - 1, 0, -1):
            longer += counts[length]  # a longer match is one of this length as well
            if longer:
                total = longer + self._weights[length - 1]
                for shorter in range(length, len(counts)):
                    shares[shorter] += left / total
                left *= self._weights[length - 1] / total
        return shares, left


class AdaptiveTableDrafter(MatchDrafter):
    """Kind `table`, with the session's own past."""

    def __init__(self, table: NgramTable, weights: Sequence[float], info: DrafterInfo) -> None:
        """`info`: of the table alone; this one is another arm."""
        self._mixture = ContextMixture(table, weights)
        super().__init__(self._mixture.settings)
        told = f"{info.model_digest} context {tuple(weights)!r}"
        digest = hashlib.sha256(told.encode()).hexdigest()
        self.info = replace(info, model_digest=digest, bytes_per_token=BYTES_PER_TOKEN)

    def _advance(self, turn: Turn, index: MatchIndex) -> Advance:
        scores = self._feed(index, turn)
        proposals: list[Proposal] = []
        for offset in range(turn.offset, turn.offset + turn.num_wanted):
            law = self._mixture.law(index)
            if not law:
                return Advance(proposals=proposals, end=DraftEndReason.CONFIDENCE, scores=scores)
            proposals.append(_propose(law, turn, offset))
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
                scores.append(_score(law, turn, length) if law else Score(-math.inf, False))
            index.push(turn.tokens[length])
        return tuple(scores)


def _propose(law: dict[int, float], turn: Turn, offset: int) -> Proposal:
    ask = turn.ask
    if not is_plain(ask.sampling):
        token = sample_sparse([_columns(law)], [draft_input(turn, offset, turn.token_counts)])[0]
        return Proposal(token.token_id, token.row, token.logprob)
    if ask.sampling.greedy or ask.rule is Rule.COUPLED:
        guess = _guess(law, turn, turn.block_start + offset)
        return Proposal(guess, None, math.log(law[guess] / sum(law.values())))
    row = _row(law, turn)
    at = row.draw(draft_draw(ask.draft_key, turn.block_start, offset))
    return Proposal(row.ids[at], row.encode(), row.logprob(row.ids[at]))


def _score(law: dict[int, float], turn: Turn, length: int) -> Score:
    """Of the token at `length`, by the law of what follows the tokens before it."""
    token = turn.tokens[length]
    if not is_plain(turn.ask.sampling):
        item = draft_input(turn, length - turn.block_start, turn.counts_before(length))
        return Score(*score_sparse([_columns(law)], [item], [token])[0])
    if turn.ask.sampling.greedy:
        guessed = _guess(law, turn, length) == token
        return Score(0.0 if guessed else -math.inf, guessed)
    guessed = turn.ask.rule is Rule.COUPLED and _guess(law, turn, length) == token
    return Score(_row(law, turn).logprob(token), guessed)


def _guess(law: dict[int, float], turn: Turn, position: int) -> int:
    ask = turn.ask
    if ask.sampling.greedy:
        return likeliest(law)
    return coupled_guess(law, temperature=ask.sampling.temperature, key=ask.draft_key, position=position)


def _row(law: dict[int, float], turn: Turn) -> SparseRow:
    return SparseRow(law, temperature=turn.ask.sampling.temperature, max_row=turn.max_row, row_mass=turn.row_mass)


def _columns(law: dict[int, float]) -> Distribution:
    """As the kernels take it: ids ascending."""
    ids = sorted(law)
    return np.array(ids, dtype=np.int64), np.array([law[token] for token in ids])

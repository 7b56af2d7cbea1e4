"""An n-gram table as a draft: the distribution by the last tokens, sampled as any other draft's.

This is the static form; a table with weights for it is mixed with the session's own past (`specmesh.draft.adaptive`).

The arithmetic is `specmesh.kernels`' own; the row of a context under the same sampling is kept, so that drafting from a
context met before costs one random number and one search, or under COUPLED the noise of the law's ids.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specmesh.draft.adaptive import AdaptiveTableDrafter
from specmesh.draft.drafter import Advance, DrafterInfo, Proposal, Score, Turn
from specmesh.draft.kernel_input import draft_input
from specmesh.draft.ngram_file import MAX_ORDER, Level, NgramTable, load_table
from specmesh.draft.settings import parse_settings
from specmesh.draft.sparse_law import Law, SparseRow, can_shape, noisy_largest, shape
from specmesh.draft.table_settings import TableSettings
from specmesh.kernels.ops import Distribution, sample_sparse, score_sparse
from specmesh.runtime.config import ConfigError
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.philox import draft_draw
from specmesh.runtime.rows import decode_row
from specmesh.runtime.types import DraftAsk, DraftEndReason, Rule, Sampling


@dataclass(frozen=True, slots=True)
class KeptRow:
    """What to say in a context: draw from `row`; when that is None, `token_id` for certain; under COUPLED the guess."""

    token_id: int
    logprob: float
    row: bytes | None
    ids: NDArray[np.uint32]
    weights: NDArray[np.uint32]
    ends: NDArray[np.int64]
    """Cumulative weights."""
    law: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
    """Under COUPLED: ids ascending, and ln D of them before they were made a row."""

    def say(self, key: int, block_start: int, offset: int) -> Proposal:
        """The token at a place in a block."""
        if self.law is not None:
            guess = self.guess(key, block_start + offset)
            return Proposal(guess, None, float(self.law[1][self.law[0].searchsorted(guess)]))
        if self.row is None:
            return Proposal(self.token_id, None, self.logprob)
        at = int(self.ends.searchsorted(draft_draw(key, block_start, offset), side="right"))
        return Proposal(int(self.ids[at]), self.row, math.log(int(self.weights[at]) / ROW_TOTAL))

    def guess(self, key: int, position: int) -> int:
        """What is likeliest under COUPLED's noise."""
        assert self.law is not None
        return noisy_largest(*self.law, key=key, position=position)

    def score(self, token_id: int, key: int, position: int) -> Score:
        """ln D of a token at a position."""
        if self.row is None:
            guessed = token_id == self.token_id
            return Score(0.0 if guessed else -math.inf, guessed)
        guessed = self.law is not None and self.guess(key, position) == token_id
        at = int(self.ids.searchsorted(token_id))
        if at == len(self.ids) or int(self.ids[at]) != token_id:
            return Score(-math.inf, guessed)
        return Score(math.log(int(self.weights[at]) / ROW_TOTAL), guessed)


_Kept = dict[tuple[int, int], KeptRow]
"""Rows by the context's length and index."""


class TableDrafter:
    """Kind `table`."""

    inline = True

    def __init__(self, table: NgramTable, *, max_context_tokens: int, max_kept_rows: int) -> None:
        self._table = table
        self._max_kept_rows = max_kept_rows
        self._num_rows = 0
        self._kept: OrderedDict[tuple[Sampling, bool, int, float], _Kept] = OrderedDict()
        self.info = DrafterInfo(
            kind="table",
            name=table.name,
            model_digest=table.digest,
            max_context_tokens=max_context_tokens,
            vocabulary_size=table.vocabulary_size,
            tokenizer_digest=table.tokenizer_digest,
            vocabulary_hashes=table.vocabulary_hashes,
            eos_token_ids=table.eos_token_ids,
        )

    @property
    def num_kept(self) -> int:
        """Rows kept, and samplings for which there are or will be some."""
        return self._num_rows + len(self._kept)

    def advance(self, turns: Sequence[Turn]) -> list[Advance]:
        """All tokens for each turn; CONFIDENCE where the table has nothing at all."""
        return [self._advance(turn) for turn in turns]

    def truncate(self, session_id: int, length: int) -> None:
        """Nothing is kept of a session."""

    def release(self, session_id: int) -> None:
        """Nothing is kept of a session."""

    def _advance(self, turn: Turn) -> Advance:
        kept = self._kept_for(turn)
        scores = tuple(self._scores(turn, kept))
        proposals: list[Proposal] = []
        tail = list(turn.tokens[-MAX_ORDER:])
        for offset in range(turn.offset, turn.offset + turn.num_wanted):
            found = self._table.find(tail)
            if found is None:
                return Advance(proposals=proposals, end=DraftEndReason.CONFIDENCE, scores=scores)
            proposal = self._propose(turn, offset, found, kept)
            proposals.append(proposal)
            tail.append(proposal.token_id)
        return Advance(proposals=proposals, scores=scores)

    def _propose(self, turn: Turn, offset: int, found: tuple[Level, int], kept: _Kept | None) -> Proposal:
        if kept is None:
            item = draft_input(turn, offset, turn.token_counts)
            token = sample_sparse([found[0].distribution(found[1])], [item])[0]
            return Proposal(token.token_id, token.row, token.logprob)
        return self._row(turn, found, kept).say(turn.ask.draft_key, turn.block_start, offset)

    def _scores(self, turn: Turn, kept: _Kept | None) -> Iterator[Score]:
        """Score what is to be scored, each token in the context before it."""
        if turn.score_from is None:
            return
        for length in range(turn.score_from, turn.block_start):
            token = turn.tokens[length]
            found = self._table.find(turn.tokens[max(0, length - MAX_ORDER) : length])
            if found is None:
                yield Score(-math.inf, False)
            elif kept is not None:
                yield self._row(turn, found, kept).score(token, turn.ask.draft_key, length)
            else:
                item = draft_input(turn, length - turn.block_start, turn.counts_before(length))
                yield Score(*score_sparse([found[0].distribution(found[1])], [item], [token])[0])

    def _row(self, turn: Turn, found: tuple[Level, int], kept: _Kept) -> KeptRow:
        level, index = found
        row = kept.get((level.length, index))
        if row is None:
            row = kept[level.length, index] = _kept_row(level.distribution(index), turn)
            self._num_rows += 1
        return row

    def _kept_for(self, turn: Turn) -> _Kept | None:
        """The rows kept for this sampling; None when a row is not all there is to it.

        When too many are kept, those of the samplings that were not asked for the longest are dropped.
        """
        if not _keepable(turn.ask):
            return None
        key = (turn.ask.sampling, turn.ask.rule is Rule.COUPLED, turn.max_row, turn.row_mass)
        while self.num_kept > self._max_kept_rows:
            _, dropped = self._kept.popitem(last=False)
            self._num_rows -= len(dropped)
        kept = self._kept.setdefault(key, {})
        self._kept.move_to_end(key)
        return kept


def _keepable(ask: DraftAsk) -> bool:
    """Whether what is said in a context depends on nothing but the context, the sampling, the key and the position."""
    if ask.sampling.has_penalties:
        return False
    return ask.sampling.greedy or ask.rule is not Rule.COUPLED or can_shape(ask.sampling)


def _kept_row(distribution: Distribution, turn: Turn) -> KeptRow:
    """In plain Python where that goes: a block with new rows then takes little longer than one with kept rows, and
    whether it is late says little of its tokens (docs/exactness.md, section 7).
    """
    ask = turn.ask
    if ask.sampling.greedy or not can_shape(ask.sampling):
        token = sample_sparse([distribution], [draft_input(turn, 0, None)])[0]
        token_id, logprob, row = token.token_id, token.logprob, token.row
    else:  # under COUPLED too: a score tells of the row that another rule would get
        sparse = SparseRow(_shape(distribution, ask.sampling), max_row=turn.max_row, row_mass=turn.row_mass)
        token_id, logprob, row = sparse.ids[0], sparse.logprob(sparse.ids[0]), sparse.encode()
    ids, weights = decode_row(row or b"")
    ends = np.cumsum(weights, dtype=np.int64)
    coupled = ask.rule is Rule.COUPLED and not ask.sampling.greedy
    law = _shaped(distribution, ask.sampling) if coupled else None
    return KeptRow(token_id, logprob, row, ids, weights, ends, law)


def _shape(distribution: Distribution, sampling: Sampling) -> Law:
    ids, probs = distribution
    return shape({token: prob for token, prob in zip(ids.tolist(), probs.tolist(), strict=True) if prob > 0}, sampling)


def _shaped(distribution: Distribution, sampling: Sampling) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(ids ascending, ln D) at a request's temperature and truncation."""
    law = _shape(distribution, sampling)
    kept = np.array(sorted(law), dtype=np.int64)
    shares = np.array([law[token] for token in kept.tolist()])
    return kept, np.log(shares / shares.sum())


def make(settings: Mapping[str, Any]) -> TableDrafter | AdaptiveTableDrafter:
    """A table drafter. Raises `ConfigError` naming the setting, `InvalidValue` naming what is wrong in the file."""
    given = parse_settings(TableSettings, settings)
    table = load_table(given.path)
    static = TableDrafter(table, max_context_tokens=given.max_context_tokens, max_kept_rows=given.max_kept_rows)
    if given.context and not table.context_weights:
        raise ConfigError(f"drafter.context: {given.path} has no context_weights")
    if given.context is False or not table.context_weights:
        return static
    return AdaptiveTableDrafter(table, table.context_weights, static.info)

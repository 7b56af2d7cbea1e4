"""What a draft says with a law over a handful of ids: a proposal, or a score of what was said."""

import math

import numpy as np

from specmesh.draft.drafter import Proposal, Score, Turn
from specmesh.draft.kernel_input import draft_input
from specmesh.draft.sparse_law import Law, SparseRow, can_shape, coupled_guess, likeliest, shape
from specmesh.kernels.ops import Distribution, sample_sparse, score_sparse
from specmesh.runtime.philox import draft_draw
from specmesh.runtime.types import Rule


def propose(law: Law, turn: Turn, offset: int) -> Proposal:
    """The token `offset` tokens into the turn's block, by the law (at temperature 1) of what follows."""
    ask = turn.ask
    if not can_shape(ask.sampling):
        token = sample_sparse([_columns(law)], [draft_input(turn, offset, turn.token_counts)])[0]
        return Proposal(token.token_id, token.row, token.logprob)
    if ask.sampling.greedy:
        guess = likeliest(law)
        return Proposal(guess, None, math.log(law[guess] / sum(law.values())))
    shaped = shape(law, ask.sampling)
    if ask.rule is Rule.COUPLED:
        guess = coupled_guess(shaped, key=ask.draft_key, position=turn.block_start + offset)
        return Proposal(guess, None, math.log(shaped[guess] / sum(shaped.values())))
    row = SparseRow(shaped, max_row=turn.max_row, row_mass=turn.row_mass)
    at = row.draw(draft_draw(ask.draft_key, turn.block_start, offset))
    return Proposal(row.ids[at], row.encode(), row.logprob(row.ids[at]))


def score(law: Law, turn: Turn, length: int) -> Score:
    """Of the token at `length`, by the law (at temperature 1) of what follows the tokens before it."""
    token, ask = turn.tokens[length], turn.ask
    if not can_shape(ask.sampling):
        item = draft_input(turn, length - turn.block_start, turn.counts_before(length))
        return Score(*score_sparse([_columns(law)], [item], [token])[0])
    if ask.sampling.greedy:
        guessed = likeliest(law) == token
        return Score(0.0 if guessed else -math.inf, guessed)
    shaped = shape(law, ask.sampling)
    guessed = ask.rule is Rule.COUPLED and coupled_guess(shaped, key=ask.draft_key, position=length) == token
    return Score(SparseRow(shaped, max_row=turn.max_row, row_mass=turn.row_mass).logprob(token), guessed)


def _columns(law: Law) -> Distribution:
    """As the kernels take it: ids ascending."""
    ids = sorted(law)
    return np.array(ids, dtype=np.int64), np.array([law[token] for token in ids])

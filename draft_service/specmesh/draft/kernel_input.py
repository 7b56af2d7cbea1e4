"""A turn as the kernels take it."""

from collections.abc import Mapping

from specmesh.draft.drafter import Turn
from specmesh.kernels.ops import DraftInput


def draft_input(turn: Turn, offset: int, counts: Mapping[int, int] | None) -> DraftInput:
    """The position `offset` tokens into the turn's block (before it, when negative); `counts` of the tokens before."""
    ask = turn.ask
    return DraftInput(
        block_start=ask.position,
        offset=offset,
        sampling=ask.sampling,
        rule=ask.rule,
        key=ask.draft_key,
        token_counts=counts,
        max_row=turn.max_row,
        row_mass=turn.row_mass,
    )

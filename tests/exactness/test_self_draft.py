"""C30: a model that drafts for itself is accepted: what rows lose by their integers is next to nothing."""

import torch
from draft_models import VOCABULARY, tiny_drafter, tiny_model
from draft_peers import WHOLE_ROWS, ask_for, draft_peer

from specmesh.kernels.inputs import VerifyInput
from specmesh.kernels.ops import verify
from specmesh.model.spans import Span
from specmesh.runtime.rows import decode_row
from specmesh.runtime.types import Rule, Sampling

LENGTH = 8
NUM_SESSIONS = 150


async def accepted(rule: Rule, sampling: Sampling, draft_temperature: float) -> float:
    """The share of drafted tokens that are kept; the draft samples at a temperature of its own."""
    target = tiny_model()
    target.allocate_cache(4)
    kept = drafted = 0
    async with draft_peer(tiny_drafter(), limits=WHOLE_ROWS) as peer:
        for session in range(NUM_SESSIONS):
            context = [1 + session % 60, 7, 3, 1 + session // 60]
            ask = ask_for(
                context,
                len(context),
                LENGTH,
                session_id=session,
                draft_key=session,
                sampling=Sampling(temperature=draft_temperature),
                rule=rule,
            )
            block = await peer.talk.ask(ask)
            tokens = [*context, *block.token_ids]
            with torch.inference_mode():
                logits = target.forward([Span(tokens, 0, (0, 1), len(context) - 1)])
            rows = [decode_row(row) for row in block.rows]
            asked = VerifyInput(len(context), block.token_ids, rows, sampling, rule, 10**9 + session)
            (outcome,) = verify(logits, [asked], vocabulary_size=VOCABULARY)
            kept, drafted = kept + outcome.num_accepted, drafted + LENGTH
    return kept / drafted


async def test_a_model_drafting_for_itself_is_accepted() -> None:
    for rule in (Rule.TOKEN, Rule.BLOCK):
        assert await accepted(rule, Sampling(), 1.0) > 0.999


async def test_and_at_another_temperature_it_is_not() -> None:
    assert await accepted(Rule.BLOCK, Sampling(), 1.3) < 0.95

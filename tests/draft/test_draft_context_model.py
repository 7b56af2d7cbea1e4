"""Kind `hf` with the session's own past: its law, that its rows and scores are honest, and that its memory is soft."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from draft_models import VOCABULARY, dense, tiny_drafter, tiny_model, tiny_module
from draft_peers import WHOLE_ROWS, ask_for, assert_honest, draft_peer

from specmesh.draft.hf import HfDrafter
from specmesh.runtime.types import Rule, Sampling

WEIGHTS = (2.0, 0.5, 0.25)
TEXT = random.Random(3).choices(range(12), k=60)


def drafter() -> HfDrafter:
    return tiny_drafter(context_weights=WEIGHTS)


def law_by_definition(context: Sequence[int]) -> np.ndarray:
    """P_m = (c + a_m P_{m-1}) / (n + a_m), counted over the whole context; P_0 from transformers alone."""
    module = tiny_module()
    module.set_attn_implementation("eager")
    with torch.inference_mode():
        logits = module(torch.tensor([list(context)])).logits[0, -1, :VOCABULARY]
    law = torch.softmax(logits.double(), dim=-1).numpy()
    for length, weight in enumerate(WEIGHTS, start=1):
        counts = np.zeros(VOCABULARY)
        for at in range(length, len(context)):
            if context[at - length : at] == context[-length:]:
                counts[context[at]] += 1
        law = (counts + weight * law) / (counts.sum() + weight)
    return law


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
async def test_rows_are_honest_and_those_of_the_law(temperature: float) -> None:
    """Every token derives from its row; the row is the law at the temperature, drafted tokens part of the context."""
    sampling = Sampling(temperature=temperature)
    async with draft_peer(drafter(), limits=WHOLE_ROWS) as peer:
        for end in (30, 40, 50):
            ask = ask_for(TEXT[:end], 30 if end == 30 else 10, 4, sampling=sampling)
            answer = await peer.talk.ask(ask)
            assert_honest(answer, ask, VOCABULARY)
            assert len(answer.rows) == 4
            for offset, row in enumerate(answer.rows):
                want = law_by_definition(TEXT[:end] + answer.token_ids[:offset]) ** (1 / temperature)
                np.testing.assert_allclose(dense(row), want / want.sum(), atol=2e-5)


async def test_a_greedy_draft_says_the_likeliest_of_the_mixture() -> None:
    async with draft_peer(drafter()) as peer:
        answer = await peer.talk.ask(ask_for(TEXT[:40], 40, 6, sampling=Sampling(temperature=0)))
        for offset, token in enumerate(answer.token_ids):
            assert token == int(law_by_definition(TEXT[:40] + answer.token_ids[:offset]).argmax())


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        (Sampling(), Rule.BLOCK),
        (Sampling(temperature=0), Rule.BLOCK),
        (Sampling(temperature=0.7, top_p=0.9), Rule.COUPLED),
        (Sampling(presence_penalty=0.9, repetition_penalty=1.3), Rule.TOKEN),
    ],
)
async def test_scores_are_those_of_a_block_that_starts_there(sampling: Sampling, rule: Rule) -> None:
    delta = TEXT[30:36]
    async with draft_peer(drafter()) as peer, draft_peer(drafter()) as other:
        await peer.talk.ask(ask_for(TEXT[:30], 30, 5, sampling=sampling, rule=rule))
        scored = await peer.talk.ask(ask_for(TEXT[:36], 6, 2, sampling=sampling, rule=rule, want_scores=True))
        assert scored.end is not None
        for place, token in enumerate(delta):
            there = TEXT[: 30 + place]
            block = await other.talk.ask_or_open(ask_for(there, 0, 1, sampling=sampling, rule=rule), there)
            score = scored.end.delta_logprobs[place]
            if block.rows:
                assert math.exp(score) == pytest.approx(dense(block.rows[0])[token], rel=1e-4, abs=1e-7)
            elif rule is Rule.COUPLED:
                assert scored.end.delta_guessed[place] == (block.token_ids[0] == token)
            else:
                assert score == (0.0 if block.token_ids[0] == token else -math.inf)
        fresh = await other.talk.ask_or_open(ask_for(TEXT[:36], 0, 2, sampling=sampling, rule=rule), TEXT[:36])
        assert scored.token_ids == fresh.token_ids


async def test_rejected_tokens_leave_no_trace_and_any_replica_says_the_same() -> None:
    async with draft_peer(drafter()) as one:
        context = TEXT[:20]
        await one.talk.ask(ask_for(context, 20, 8))
        for kept, tokens in ((3, [11]), (0, [2]), (8, [60]), (1, [11, 5, 40])):
            drafted = (await one.talk.ask(ask_for(context, 0, 8))).token_ids
            delta = [*drafted[:kept], *tokens]
            context = context + delta
            warm = await one.talk.ask(ask_for(context, len(delta), 4))
            async with draft_peer(drafter()) as other:
                cold = await other.talk.ask(ask_for(context, len(context), 4))
            assert warm.token_ids == cold.token_ids
            for row, again in zip(warm.rows, cold.rows, strict=True):
                np.testing.assert_allclose(dense(row), dense(again), atol=1e-5)


async def test_a_head_over_a_subset_can_say_what_is_in_the_past_and_it_cannot() -> None:
    """The past has ids that the head lacks, as long as the context repeats them."""
    token_map = torch.arange(1, VOCABULARY, 2)
    context = [2, 4, 6, 8] * 6
    model = tiny_drafter(tiny_model(token_map=token_map), context_weights=(0.1, 0.1, 0.1))
    async with draft_peer(model) as peer:
        answer = await peer.talk.ask(ask_for(context, 24, 4, sampling=Sampling(temperature=0)))
        assert answer.token_ids == [2, 4, 6, 8]


async def test_a_mixture_is_another_arm_and_forgets_closed_sessions() -> None:
    assert drafter().info.model_digest != tiny_drafter().info.model_digest
    assert drafter().info.bytes_per_token > tiny_drafter().info.bytes_per_token

"""Kind `hf` through the running service, against the plain transformers model."""

import math

import numpy as np
import pytest
import torch
from draft_models import VOCABULARY, dense, tiny_drafter, tiny_model, tiny_module
from draft_peers import WHOLE_ROWS, ask_for, assert_honest, draft_peer

from specmesh.draft.admission import EngineLimits
from specmesh.runtime.types import Rule, Sampling
from specmesh.v1 import draft_service_pb2 as pb

CONTEXT = [7, 3, 55, 20, 1, 9, 42, 30]
RANDOM = np.random.default_rng(3)
LONG = RANDOM.integers(0, VOCABULARY, size=200).tolist()


def plain_law(context: list[int], temperature: float = 1.0) -> np.ndarray:
    """The law after `context`, from transformers alone."""
    module = tiny_module()
    module.set_attn_implementation("eager")
    with torch.inference_mode():
        logits = module(torch.tensor([context])).logits[0, -1, :VOCABULARY]
    return torch.softmax(logits / temperature, dim=-1).numpy()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
async def test_rows_are_the_models_law_and_tokens_derive_from_them(temperature: float) -> None:
    async with draft_peer(tiny_drafter()) as peer:
        context, sampling = list(CONTEXT), Sampling(temperature=temperature)
        for step in range(3):
            ask = ask_for(context, len(context) if step == 0 else 4, sampling=sampling)
            answer = await peer.talk.ask(ask)
            assert answer.reason == "LENGTH"
            assert answer.source == ("COLD" if step == 0 else "WARM")
            assert_honest(answer, ask, VOCABULARY)
            for offset, row in enumerate(answer.rows):
                law = plain_law(context + answer.token_ids[:offset], temperature)
                np.testing.assert_allclose(dense(row), law, atol=6e-6)
            context += answer.token_ids


async def test_rejected_tokens_leave_no_trace() -> None:
    """The next step goes on from the verified context, wherever it parts from the draft, and however far it got."""
    async with draft_peer(tiny_drafter()) as peer:
        context = list(CONTEXT)
        await peer.talk.ask(ask_for(context, len(context), 8))
        for kept, tokens in ((3, [11]), (0, [2]), (8, [60]), (1, [11, 5, 40]), (0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])):
            drafted = (await peer.talk.ask(ask_for(context, 0, 8))).token_ids
            delta = [*drafted[:kept], *tokens]
            context += delta
            answer = await peer.talk.ask(ask_for(context, len(delta), 1))
            np.testing.assert_allclose(dense(answer.rows[0]), plain_law(context), atol=6e-6)


async def test_a_long_prompt_comes_by_open_and_is_prefilled_in_chunks() -> None:
    async with draft_peer(tiny_drafter(chunk_tokens=16)) as peer:
        assert (await peer.talk.ask(ask_for(LONG, 1, 1))).needed == 0
        assert await peer.talk.open(1, LONG) == 200
        answer = await peer.talk.ask(ask_for(LONG, 0, 2))
        assert answer.source == "COLD"
        np.testing.assert_allclose(dense(answer.rows[0]), plain_law(LONG), atol=6e-6)


async def test_many_sessions_share_forwards() -> None:
    """The batch size in the answers says so, and every session has the tokens that it has alone."""
    asks = [ask_for([s, *CONTEXT], len(CONTEXT) + 1, 4, session_id=s, draft_key=s * 977) for s in range(8)]
    async with draft_peer(tiny_drafter()) as peer:
        together = await peer.talk.ask_all(asks)
    assert all(answer.end is not None and answer.end.batch_size == 8 for answer in together)
    for ask, answer in zip(asks, together, strict=True):
        async with draft_peer(tiny_drafter()) as peer:
            alone = await peer.talk.ask(ask)
        assert (alone.token_ids, alone.rows) == (answer.token_ids, answer.rows)
        assert alone.end is not None
        assert alone.end.batch_size == 1


async def test_tokens_travel_one_by_one() -> None:
    async with draft_peer(tiny_drafter()) as peer:
        answer = await peer.talk.ask(ask_for(CONTEXT, 8, 6))
        assert answer.num_parts == 6


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        (Sampling(), Rule.BLOCK),
        (Sampling(temperature=0), Rule.BLOCK),
        (Sampling(temperature=0.7), Rule.COUPLED),
        (Sampling(presence_penalty=0.9, repetition_penalty=1.3), Rule.TOKEN),
    ],
)
async def test_scores_are_those_of_a_block_that_starts_there(sampling: Sampling, rule: Rule) -> None:
    delta = [4, 17, 17, 33]
    async with draft_peer(tiny_drafter()) as peer, draft_peer(tiny_drafter()) as other:
        await peer.talk.ask(ask_for(CONTEXT, 8, 5, sampling=sampling, rule=rule))
        ask = ask_for(CONTEXT + delta, 4, 2, sampling=sampling, rule=rule, want_scores=True)
        scored = await peer.talk.ask(ask)
        assert scored.end is not None
        for place, token in enumerate(delta):
            there = CONTEXT + delta[:place]
            block = await other.talk.ask_or_open(ask_for(there, 0, 1, sampling=sampling, rule=rule), there)
            score = scored.end.delta_logprobs[place]
            if block.rows:
                assert math.exp(score) == pytest.approx(dense(block.rows[0])[token], rel=1e-5, abs=1e-7)
            elif rule is Rule.COUPLED:
                assert scored.end.delta_guessed[place] == (block.token_ids[0] == token)
            else:
                assert score == (0.0 if block.token_ids[0] == token else -math.inf)
        unscored = await other.talk.ask_or_open(
            ask_for(CONTEXT + delta, 0, 2, sampling=sampling, rule=rule), CONTEXT + delta
        )
        assert scored.token_ids == unscored.token_ids


async def test_a_cold_start_is_scored_too_and_the_first_token_of_all_cannot_be() -> None:
    async with draft_peer(tiny_drafter()) as peer:
        answer = await peer.talk.ask(ask_for(CONTEXT, 8, 1, want_scores=True))
        assert answer.end is not None
        assert answer.end.delta_logprobs[0] == -math.inf
        assert math.exp(answer.end.delta_logprobs[7]) == pytest.approx(plain_law(CONTEXT[:7])[30], rel=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_head_over_a_subset_says_only_what_it_can(temperature: float) -> None:
    """C14, draft side: the head is narrower than the vocabulary, and its columns are not ids."""
    token_map = torch.tensor([1, 4, 7, 9, 20, 33, 41, 42, 43, 44, 45, 46, 47, 48, 49, 60])
    async with draft_peer(tiny_drafter(tiny_model(token_map=token_map))) as peer:
        ask = ask_for(CONTEXT, 8, 8, sampling=Sampling(temperature=temperature))
        answer = await peer.talk.ask(ask)
        assert set(answer.token_ids) <= set(token_map.tolist())
        assert_honest(answer, ask, VOCABULARY)
        law = np.zeros(VOCABULARY)
        law[token_map] = plain_law(CONTEXT)[token_map]
        if temperature:
            np.testing.assert_allclose(dense(answer.rows[0]), law / law.sum(), atol=6e-6)
        else:
            assert answer.token_ids[0] == law.argmax()
        ids = [*CONTEXT, 33, 2]
        scored = await peer.talk.ask(ask_for(ids, 2, 0, want_scores=True))
        assert scored.end is not None
        assert scored.end.delta_logprobs[0] > -math.inf
        assert scored.end.delta_logprobs[1] == -math.inf


async def test_padding_of_the_head_is_never_proposed() -> None:
    """C14, draft side: the head is wider than the vocabulary, and its padding has the largest logits."""
    async with draft_peer(tiny_drafter(tiny_model(loud_padding=True))) as peer:
        for temperature in (0.0, 1.7):
            ask = ask_for(CONTEXT, 8, 16, sampling=Sampling(temperature=temperature))
            answer = await peer.talk.ask(ask)
            assert max(answer.token_ids) < VOCABULARY
            assert_honest(answer, ask, VOCABULARY)


class PoisonedModel:
    """The tiny model with NaN where the last token fed is `token`."""

    def __init__(self, token: int) -> None:
        self._model = tiny_model()
        self._token = token
        self.vocabulary_size = self._model.vocabulary_size
        self.max_context_tokens = self._model.max_context_tokens
        self.bytes_per_block = self._model.bytes_per_block
        self.token_map = None
        self.allocate_cache = self._model.allocate_cache

    def forward(self, spans: list) -> torch.Tensor:
        logits = self._model.forward(spans)
        fed = [token for span in spans for token in span.token_ids[span.first_row :]]
        for row, token in enumerate(fed):
            if token == self._token:
                logits[row] = torch.nan
        return logits


async def test_a_block_ends_before_sampling_from_nan() -> None:
    """C6, C36: NaN at offset 1 of one session: its block is what came before, and its neighbour's is whole."""
    async with draft_peer(tiny_drafter()) as peer:
        honest = await peer.talk.ask(ask_for(CONTEXT, 8, 4))
    async with draft_peer(tiny_drafter(PoisonedModel(honest.token_ids[0]))) as peer:
        other = ask_for([5, 6, 8], 3, 4, session_id=2, draft_key=99)
        ask = ask_for(CONTEXT, 8, 4)
        poisoned, neighbour = await peer.talk.ask_all([ask, other])
        assert (poisoned.reason, poisoned.token_ids) == ("NON_FINITE", honest.token_ids[:1])
        assert poisoned.rows == honest.rows[:1]
        assert_honest(neighbour, other, VOCABULARY)
        if honest.token_ids[0] not in neighbour.token_ids[:3]:
            assert neighbour.reason == "LENGTH"
        again = await peer.talk.ask(ask_for([*CONTEXT, 12], 1, 1))
        assert again.source == "COLD"
        np.testing.assert_allclose(dense(again.rows[0]), plain_law([*CONTEXT, 12]), atol=6e-6)


async def test_the_least_recently_used_cache_goes_first_and_comes_back_from_its_tokens() -> None:
    async with draft_peer(tiny_drafter(num_blocks=4)) as peer:
        contexts = {s: RANDOM.integers(0, VOCABULARY, size=20).tolist() for s in range(3)}
        sources = []
        for session in (0, 1, 0, 2, 0, 1):
            ask = ask_for(contexts[session], 20 if session not in sources else 0, 1, session_id=session)
            answer = await peer.talk.ask(ask)
            assert_honest(answer, ask, VOCABULARY)
            np.testing.assert_allclose(dense(answer.rows[0]), plain_law(contexts[session]), atol=6e-6)
            sources.append(answer.source)
        assert sources == ["COLD", "COLD", "WARM", "COLD", "WARM", "COLD"]


async def test_a_context_ends_where_the_memory_does() -> None:
    async with draft_peer(tiny_drafter(num_blocks=2)) as peer:
        assert (await peer.stub.GetInfo(pb.DraftServiceGetInfoRequest())).info.max_context_tokens == 32
        last = await peer.talk.ask(ask_for([3] * 30, 30, 4))
        assert (len(last.token_ids), last.reason) == (2, "CONTEXT")
        assert (await peer.talk.ask(ask_for([3] * 32, 32, 4, session_id=2))).error == "CONTEXT_TOO_LONG"


async def test_memory_that_does_not_hold_a_batch_costs_the_last_to_come() -> None:
    async with draft_peer(tiny_drafter(num_blocks=4, chunk_tokens=64)) as peer:
        asks = [ask_for(LONG[s : s + 20], 20, 1, session_id=s) for s in range(3)]
        answers = await peer.talk.ask_all(asks)
        assert [answer.error for answer in answers] == [None, None, "OVERLOADED"]
        assert (await peer.talk.ask(ask_for(LONG[2:22], 0, 1, session_id=2))).reason == "LENGTH"


async def test_closing_all_sessions_gives_all_blocks_back() -> None:
    drafter = tiny_drafter()
    async with draft_peer(drafter) as peer:
        before = drafter.caches.available
        await peer.talk.ask_all([ask_for(LONG[s : s + 40], 40, 8, session_id=s) for s in range(5)])
        assert drafter.caches.available < before
        for session in range(5):
            await peer.runner.call(lambda engine, session=session: engine.close(session))
        assert drafter.caches.available == before


async def test_a_context_shorter_than_the_targets_costs_its_session_only() -> None:
    """C26: at the end of the draft's context the block ends, then that session is refused, and no other."""
    async with draft_peer(tiny_drafter(tiny_model(max_position_embeddings=32)), limits=EngineLimits()) as peer:
        full, other = LONG[:30], ask_for(CONTEXT, 8, 4, session_id=2)
        ask = ask_for(full, 30, 4)
        answer, _ = await peer.talk.ask_all([ask, other])
        assert (answer.reason, len(answer.token_ids)) == ("CONTEXT", 2)
        assert_honest(answer, ask, VOCABULARY)
        beyond, fine = await peer.talk.ask_all([ask_for(LONG[:32], 2, 4), ask_for([*CONTEXT, 4], 1, 4, session_id=2)])
        assert beyond.error == "CONTEXT_TOO_LONG"
        assert fine.reason == "LENGTH"


async def test_what_a_greedy_draft_says_is_the_models_own_continuation() -> None:
    module = tiny_module()
    module.set_attn_implementation("eager")
    with torch.inference_mode():
        output = module.generate(
            torch.tensor([CONTEXT]), max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    async with draft_peer(tiny_drafter(), limits=WHOLE_ROWS) as peer:
        answer = await peer.talk.ask(ask_for(CONTEXT, 8, 10, sampling=Sampling(temperature=0)))
        assert answer.token_ids == output[0, 8:].tolist()
        assert answer.rows == []

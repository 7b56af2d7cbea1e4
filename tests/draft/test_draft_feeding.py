"""How contexts are taken in: a restart, after which every session is cold at once, is no herd."""

from collections.abc import Sequence

import pytest
import torch
from draft_models import VOCABULARY, tiny_drafter, tiny_model
from draft_peers import ask_for, draft_peer

from specmesh.draft.drafter import Turn
from specmesh.draft.feeding import WARM_TOKENS, Meal, plan_meals
from specmesh.model.paged import Span

CHUNK = 64


def turn(session_id: int, length: int, *, scored: int = 0, num_wanted: int = 1) -> Turn:
    context = [session_id] * length
    start = length - scored if scored else None
    return Turn(session_id, context, length, ask_for(context, 1), 128, 0.995, None, start, num_wanted)


def sizes(meals: Sequence[Meal | None]) -> list[int]:
    return [0 if meal is None else meal.stop - meal.start for meal in meals]


@pytest.mark.parametrize(
    ("lengths", "fed"),
    [
        ([10, 20, 30], [10, 20, 30]),
        ([60, 60, 60, 5], [60, 4, 0, 5]),
        ([500, 500, 500, 5, 40], [64, 0, 0, 5, 0]),
        ([40, 500, 40, 7], [40, 24, 0, 7]),
        ([33] * 6, [33, 31, 0, 0, 0, 0]),
    ],
)
def test_a_forward_takes_one_chunk_of_cold_contexts_and_all_that_is_warm(lengths: list[int], fed: list[int]) -> None:
    turns = [turn(number, length) for number, length in enumerate(lengths)]
    meals = plan_meals(turns, lambda _: 0, CHUNK)
    assert sizes(meals) == fed
    for meal, length in zip(meals, lengths, strict=True):
        assert meal is None or meal.complete == (meal.stop == length)
        assert meal is None or (meal.stop - meal.first_row == 1) == meal.complete


def test_tokens_with_wanted_logits_are_not_split_and_do_not_wait_for_ever() -> None:
    scored = turn(1, 100, scored=60)
    assert sizes(plan_meals([scored], lambda _: 100, 32)) == [61]
    assert sizes(plan_meals([turn(2, 33), scored], lambda s: 0 if s == 2 else 100, 32)) == [32, 0]


class WatchedModel:
    """The tiny model, and how many tokens each forward took from each session."""

    def __init__(self) -> None:
        self._model = tiny_model()
        self.vocabulary_size = VOCABULARY
        self.max_context_tokens = self._model.max_context_tokens
        self.bytes_per_block = self._model.bytes_per_block
        self.token_map = None
        self.allocate_cache = self._model.allocate_cache
        self.forwards: list[list[int]] = []

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        self.forwards.append([len(span.token_ids) for span in spans])
        return self._model.forward(spans)


async def test_a_restart_is_no_herd() -> None:
    """Sixteen sessions come cold at once, long and short: a forward takes a chunk of them, and rests of contexts begun.

    The session that was there before gets a token from every forward, and all get their block.
    """
    model = WatchedModel()
    drafter = tiny_drafter(model, num_blocks=400, chunk_tokens=CHUNK)  # type: ignore[arg-type]
    async with draft_peer(drafter) as peer:
        warm = ask_for([1, 2, 3], 3, 16, session_id=99)
        assert (await peer.talk.ask(warm)).reason == "LENGTH"
        model.forwards.clear()
        asks = [ask_for([number] * (40 + 25 * number), 40 + 25 * number, 1, session_id=number) for number in range(16)]
        answers = await peer.talk.ask_all([*asks, ask_for([1, 2, 3], 0, 16, session_id=99)])
        assert [answer.reason for answer in answers] == ["LENGTH"] * 17
        cold = [sum(size for size in sizes if size > 1) for sizes in model.forwards]
        assert max(cold) <= CHUNK + 2 * WARM_TOKENS
        assert sum(cold) >= sum(ask.position for ask in asks) - 16
        assert all(1 in sizes for sizes in model.forwards[:15]), "one token each, for the session that is warm"

"""Golden greedy: whatever is drafted, the text is that of transformers' own `generate` on a CPU (float32)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from devices import CPU_AND_GPU
from verifier_models import VOCABULARY, TinyModel, tiny_model
from verifier_parts import Stepper, make_spec

from specmesh.runtime.types import FinishReason, StepResult
from specmesh.verifier.batcher import TickLimits

NUM_TOKENS = 40
PROMPTS = ([5], [3, 1, 4, 1, 5, 9, 2, 6], [int(x) for x in np.random.default_rng(1).integers(0, VOCABULARY, 70)])
Draft = Callable[[Sequence[int], int], list[int]]
"""From the true continuation and a length to the drafted tokens."""


@pytest.fixture(scope="module", params=CPU_AND_GPU)
def model(request: pytest.FixtureRequest) -> TinyModel:
    return tiny_model(device=request.param)


def oracle(rest: Sequence[int], length: int) -> list[int]:
    return [*rest, *[0] * length][:length]


def always_wrong(rest: Sequence[int], length: int) -> list[int]:
    return [(token + 1) % VOCABULARY for token in oracle(rest, length)]


def half_right(rest: Sequence[int], length: int) -> list[int]:
    return [*oracle(rest, length // 2), *always_wrong(rest[length // 2 :], length - length // 2)]


def random_draft(rest: Sequence[int], length: int) -> list[int]:
    return np.random.default_rng(len(rest)).integers(0, VOCABULARY, length).tolist()


DRAFTS: dict[str, Draft] = {
    "oracle": oracle, "always wrong": always_wrong, "half right": half_right, "random": random_draft,
}  # fmt: skip


@dataclass
class Text:
    """A session on its way."""

    session_id: int
    prompt: Sequence[int]
    truth: Sequence[int]
    draft: Draft
    length: int
    output: list[int] = field(default_factory=list)
    num_steps: int = 0
    last: StepResult | None = None

    def send(self, stepper: Stepper) -> None:
        drafts = self.draft(self.truth[len(self.output) :], self.length)
        stepper.send(self.session_id, len(self.prompt) + len(self.output), drafts)

    def take(self, result: StepResult) -> None:
        self.output += result.token_ids
        self.num_steps += 1
        self.last = result


def run_together(stepper: Stepper, texts: Sequence[Text], stop_ids: frozenset[int] = frozenset()) -> None:
    """All texts at once, each step of each as soon as it can be."""
    for text in texts:
        stepper.open(
            make_spec(text.prompt, session_id=text.session_id, max_output_tokens=NUM_TOKENS, stop_token_ids=stop_ids)
        )
        text.send(stepper)
    while stepper.core.sessions:
        stepper.stream.answers.clear()
        stepper.tick()
        for answer in stepper.stream.answers:
            assert isinstance(answer, StepResult), answer
            text = texts[answer.session_id]
            text.take(answer)
            if answer.finish_reason is None:
                text.send(stepper)


def every_text(model: TinyModel, stop_ids: Sequence[int] = ()) -> list[Text]:
    shapes = [(0, oracle), *((length, draft) for length in range(1, 9) for draft in DRAFTS.values())]
    truths = [(prompt, model.greedy(prompt, NUM_TOKENS, stop_ids)) for prompt in PROMPTS]
    return [
        Text(index, prompt, truth, draft, length)
        for index, (prompt, truth, length, draft) in enumerate(
            (prompt, truth, length, draft) for prompt, truth in truths for length, draft in shapes
        )
    ]


def test_every_draft_at_every_length_gives_the_text_of_generate(model: TinyModel) -> None:
    """99 sessions in one engine: 3 prompts, 4 drafts, lengths 1 to 8, and plain decoding."""
    texts = every_text(model)
    stepper = Stepper(model.paged, num_blocks=1200)
    model.paged.warm_up(64, 64)
    run_together(stepper, texts)
    for text in texts:
        assert text.output == list(text.truth)
        assert text.last is not None
        assert text.last.finish_reason is FinishReason.LENGTH
    assert max(text.last.batch_size for text in texts if text.last) > 1
    assert stepper.backend.num_free_blocks == 1200


def test_stop_ids_end_every_text_where_generate_ends(model: TinyModel) -> None:
    stop_ids = [model.greedy(prompt, NUM_TOKENS)[17] for prompt in PROMPTS]
    texts = every_text(model, stop_ids)
    run_together(Stepper(model.paged, num_blocks=1200), texts, frozenset(stop_ids))
    for text in texts:
        assert text.output == list(text.truth)
        assert text.last is not None
        assert (text.last.finish_reason, text.last.stop_token_id) == (FinishReason.STOP, text.truth[-1])


@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_costs_the_steps_that_it_should(model: TinyModel, name: str) -> None:
    """An oracle of length 4 needs 8 steps for 40 tokens, a draft that is always wrong needs 40."""
    text = Text(0, PROMPTS[1], model.greedy(PROMPTS[1], NUM_TOKENS), DRAFTS[name], 4)
    run_together(Stepper(model.paged), [text])
    assert text.output == list(text.truth)
    expected = {"oracle": [8], "half right": range(13, 15), "always wrong": [40], "random": range(30, 41)}
    assert text.num_steps in expected[name]


@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
def test_a_prompt_in_chunks_gives_the_same_text(model: TinyModel, chunk: int) -> None:
    truth = model.greedy(PROMPTS[2], NUM_TOKENS)
    text = Text(0, PROMPTS[2], truth, oracle, 3)
    run_together(Stepper(model.paged, limits=TickLimits(64, chunk)), [text])
    assert text.output == truth


@pytest.mark.parametrize("device", CPU_AND_GPU)
def test_nan_stays_with_its_session_and_out_of_the_blocks_it_leaves(device: str) -> None:
    """C6: a prompt that makes the model NaN, beside another; then its blocks are another session's."""
    model = tiny_model(nan_token=7, device=device)
    truth = model.greedy(PROMPTS[1], NUM_TOKENS)
    assert 7 not in truth
    broken = make_spec([7] * 20, session_id=1, max_output_tokens=12)
    sound = make_spec(PROMPTS[1], session_id=2, max_output_tokens=NUM_TOKENS)
    stepper = Stepper(model.paged, num_blocks=5)
    for specs in ((broken, sound), (sound, broken), (broken, sound)):
        before = stepper.core.counters["non_finite_logits"]
        for spec in specs:
            stepper.open(spec)
            stepper.send(spec.session_id, len(spec.context))
        stepper.tick()
        assert stepper.core.counters["non_finite_logits"] == before + 1
        answers = [answer for answer in stepper.stream.answers[-2:] if isinstance(answer, StepResult)]
        output = list(answers[0].token_ids)
        while stepper.core.sessions:
            output += stepper.step(2, len(PROMPTS[1]) + len(output), [1, 2, 3]).token_ids
        assert output == truth
        assert stepper.backend.num_free_blocks == 5


def test_a_session_that_was_cancelled_leaves_nothing_that_the_next_one_sees(model: TinyModel) -> None:
    """C15: cancel mid-step, then the same prompt: same answer as cold."""
    truth = model.greedy(PROMPTS[1], NUM_TOKENS)
    stepper = Stepper(model.paged, num_blocks=4)
    stepper.open(make_spec(PROMPTS[1], max_output_tokens=NUM_TOKENS))
    stepper.step(1, 8, always_wrong(truth, 8))
    stepper.send(1, 9, random_draft(truth, 8))
    stepper.core.close(("router", 1))
    text = Text(0, PROMPTS[1], truth, half_right, 4)
    run_together(stepper, [text])
    assert text.output == truth

"""COUPLED: the same seed gives the same text, whatever is drafted, alone or in any batch (float32)."""

from collections.abc import Sequence

import numpy as np
import pytest
from devices import CPU_AND_GPU
from verifier_models import VOCABULARY, TinyModel, tiny_model
from verifier_parts import Stepper, make_spec

from specmesh.runtime.types import Rule, Sampling, SessionSpec, StepResult
from specmesh.verifier.batcher import TickLimits

NUM_TOKENS = 24
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.7, top_k=20, min_p=0.01),
    Sampling(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.1),
)


@pytest.fixture(scope="module", params=CPU_AND_GPU)
def model(request: pytest.FixtureRequest) -> TinyModel:
    return tiny_model(seed=2, device=request.param)


def session(index: int, *, session_id: int = 0) -> SessionSpec:
    """One of many texts: prompt, seed and sampling are functions of `index`."""
    random = np.random.default_rng(index)
    prompt = random.integers(0, VOCABULARY, int(random.integers(1, 40))).tolist()
    return make_spec(
        prompt, session_id=session_id, sampling=SAMPLINGS[index % len(SAMPLINGS)], rule=Rule.COUPLED,
        verify_key=int(random.integers(0, 2**63)), max_output_tokens=NUM_TOKENS,
    )  # fmt: skip


def alone(model: TinyModel, index: int) -> list[int]:
    """The text without any draft."""
    stepper = Stepper(model.paged, num_blocks=8)
    spec = session(index)
    stepper.open(spec)
    output: list[int] = []
    while len(output) < NUM_TOKENS:
        output += stepper.step(0, len(spec.context) + len(output)).token_ids
    return output


class Schedule:
    """Drafts of random length and quality: right, wrong, missing, or a lie."""

    def __init__(self, seed: int, truth: Sequence[int]) -> None:
        self._random = np.random.default_rng(seed)
        self._truth = truth

    def block(self, num_output: int) -> tuple[list[int], list[bytes]]:
        length = int(self._random.integers(0, 9))
        rest = self._truth[num_output : num_output + length]
        num_right = int(self._random.integers(0, len(rest) + 1))
        wrong = self._random.integers(0, VOCABULARY, length - num_right).tolist()
        rows = [bytes(8)] * length if self._random.random() < 0.2 else []
        return [*rest[:num_right], *wrong], rows


def run_schedules(stepper: Stepper, texts: dict[int, tuple[int, list[int]]]) -> dict[int, list[int]]:
    """All sessions at once; `texts`: session id to (index of the text, its truth)."""
    schedules = {i: Schedule(1000 + i, truth) for i, (_, truth) in texts.items()}
    specs = {i: session(index, session_id=i) for i, (index, _) in texts.items()}
    outputs: dict[int, list[int]] = {i: [] for i in texts}
    order = np.random.default_rng(7)
    for spec in specs.values():
        stepper.open(spec)
    idle = set(texts)
    while stepper.core.sessions:
        # A random part of those that could go on takes part: every batch has other members.
        for i in sorted(idle):
            if order.random() < 0.7:
                block, rows = schedules[i].block(len(outputs[i]))
                stepper.send(i, len(specs[i].context) + len(outputs[i]), block, rows)
                idle.discard(i)
        stepper.stream.answers.clear()
        stepper.tick()
        for answer in stepper.stream.answers:
            assert isinstance(answer, StepResult), answer
            outputs[answer.session_id] += answer.token_ids
            if answer.finish_reason is None:
                idle.add(answer.session_id)
    return outputs


def test_thirty_texts_in_one_batch_equal_themselves_alone(model: TinyModel) -> None:
    """C38 among them: one block in five lies about its rows."""
    truths = {index: alone(model, index) for index in range(30)}
    stepper = Stepper(model.paged, num_blocks=200, limits=TickLimits(100, 48))
    model.paged.warm_up(48, 48)
    outputs = run_schedules(stepper, {index: (index, truth) for index, truth in truths.items()})
    assert outputs == truths
    assert len({tuple(truth) for truth in truths.values()}) == 30


def test_ten_schedules_of_one_seed_give_one_text(model: TinyModel) -> None:
    truth = alone(model, 5)
    stepper = Stepper(model.paged, num_blocks=100)
    outputs = run_schedules(stepper, dict.fromkeys(range(10), (5, truth)))
    assert all(output == truth for output in outputs.values())

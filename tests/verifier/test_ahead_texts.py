"""Golden and coupled with blocks sent ahead and runs: the text is the one that plain steps give (float32 on CPU)."""

from collections.abc import Sequence

import numpy as np
import pytest
from verifier_models import VOCABULARY, TinyModel, tiny_model
from verifier_parts import Stepper, make_spec

from specmesh.runtime.types import Outcome, Rule, Sampling, SessionSpec, StepResult

NUM_TOKENS = 24
COUPLED = {"sampling": Sampling(temperature=1.3, top_p=0.95), "rule": Rule.COUPLED}


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return tiny_model(seed=2)


def spec_of(index: int, *, coupled: bool) -> SessionSpec:
    random = np.random.default_rng(index)
    prompt = random.integers(0, VOCABULARY, int(random.integers(1, 40))).tolist()
    settings = {**COUPLED, "verify_key": index} if coupled else {}
    return make_spec(prompt, session_id=index, max_output_tokens=NUM_TOKENS, **settings)


def plain_text(model: TinyModel, spec: SessionSpec) -> list[int]:
    if spec.sampling.greedy:
        return model.greedy(spec.context, NUM_TOKENS)
    stepper = Stepper(model.paged)
    stepper.open(spec)
    text: list[int] = []
    while len(text) < NUM_TOKENS:
        text += stepper.step(spec.session_id, len(spec.context) + len(text)).token_ids
    return text


class AheadPeer:
    """One session: random blocks, runs and blocks ahead, the true outcome among them as often as not."""

    def __init__(self, stepper: Stepper, spec: SessionSpec, truth: Sequence[int]) -> None:
        self.stepper, self.spec, self.truth = stepper, spec, truth
        self.random = np.random.default_rng(100 + spec.session_id)
        self.text: list[int] = []
        self.block: list[int] = []
        self.ahead: dict[Outcome, list[int]] = {}
        self.left_of_run = 0
        stepper.open(spec)
        self.send()

    def drafts(self, at: int, length: int) -> list[int]:
        """Some right tokens, then wrong ones."""
        right = list(self.truth[at : at + int(self.random.integers(0, length + 1))])
        return [*right, *self.random.integers(0, VOCABULARY, length - len(right)).tolist()]

    def send(self) -> None:
        position = len(self.spec.context) + len(self.text)
        if self.random.random() < 0.2:
            self.left_of_run = int(self.random.integers(1, 6))
            self.stepper.send(self.spec.session_id, position, run_count=self.left_of_run)
            return
        self.block = self.drafts(len(self.text), int(self.random.integers(0, 6)))
        self.stepper.send(self.spec.session_id, position, self.block)

    def send_ahead(self) -> None:
        if self.left_of_run or self.ahead:
            return
        start, rest = len(self.text), self.truth[len(self.text) :]
        kept = next((i for i, token in enumerate(self.block) if token != rest[i : i + 1][0]), len(self.block))
        truth = (kept, int(rest[kept])) if kept < len(rest) and self.random.random() < 0.6 else (0, 0)
        for num_accepted, token in {truth, (0, 1), (len(self.block), 2)}:
            outcome = Outcome(len(self.spec.context) + start, num_accepted, token)
            self.ahead[outcome] = self.drafts(start + num_accepted + 1, int(self.random.integers(0, 5)))
            position = outcome.position + num_accepted + 1
            self.stepper.send(self.spec.session_id, position, self.ahead[outcome], after=outcome)

    def take(self, answer: StepResult) -> None:
        assert answer.position == len(self.spec.context) + len(self.text)
        self.text += answer.token_ids
        sent = self.ahead.get(Outcome(answer.position, answer.num_accepted, answer.token_ids[-1]))
        self.ahead = {}
        self.left_of_run = max(self.left_of_run - 1, 0)
        if sent is not None:
            self.block = sent
        elif answer.finish_reason is None and not self.left_of_run:
            self.send()


@pytest.mark.parametrize("coupled", [False, True])
def test_blocks_sent_ahead_and_runs_leave_every_text_as_it_is(model: TinyModel, coupled: bool) -> None:
    stepper = Stepper(model.paged, num_blocks=200)
    peers = {}
    for index in range(8):
        spec = spec_of(index, coupled=coupled)
        peers[index] = AheadPeer(stepper, spec, [*plain_text(model, spec), *[0] * 16])
    while stepper.core.sessions:
        for _, session_id in list(stepper.core.sessions):
            if peers[session_id].random.random() < 0.7:
                peers[session_id].send_ahead()
        stepper.stream.answers.clear()
        stepper.tick()
        for answer in list(stepper.stream.answers):
            assert isinstance(answer, StepResult), answer
            peers[answer.session_id].take(answer)
    assert all(peer.text == peer.truth[:NUM_TOKENS] for peer in peers.values())
    assert stepper.core.counters["conditional_taken"] > 10
    assert stepper.backend.num_free_blocks == 200

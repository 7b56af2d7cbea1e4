"""Gate 1 for blocks that are sent ahead: whatever is sent for which outcomes, early or late, the text has its law.

Tables over the last two tokens through the engine's own core; rows and draws as an honest draft makes them. A router
that sends only the blocks it likes the look of is the planted fault: it must be found.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import pytest
import torch
from devices import CPU_AND_GPU
from law_statistics import law_by_context, transitions_p
from verifier_parts import Stepper, make_spec, random_logits

from specmesh.model.spans import Span
from specmesh.runtime.philox import draft_draws
from specmesh.runtime.rows import encode_row
from specmesh.runtime.types import Outcome, Rule, Sampling, StepResult
from specmesh.verifier.batcher import TickLimits
from specmesh.verifier.entries import EntryLimits
from specmesh.verifier.target import TableTarget

SIZE = 3
TOKENS = 12
LENGTH = 3
MAX_AHEAD = 3
TARGET = random_logits(SIZE, seed=31, scale=1.3)
DRAFT = (0.5 * TARGET + 0.5 * random_logits(SIZE, seed=32, scale=1.3)).astype(np.float32)
Chooser = Callable[[Sequence[int]], bool]
"""Whether a block that could be sent ahead is."""


def send_all(block: Sequence[int]) -> bool:
    return True


def only_nice_ones(block: Sequence[int]) -> bool:
    return block[0] != 0


class HonestDraft:
    """Rows from a table at one temperature, quantised, and sampled from as they are sent."""

    def __init__(self, temperature: float) -> None:
        law = torch.softmax(torch.from_numpy(DRAFT).double() / temperature, -1).numpy()
        self._weights = np.maximum((law * (1 << 24)).astype(np.int64), 1)
        self._weights[..., 0] += (1 << 24) - self._weights.sum(-1)
        self._rows = {key: encode_row(np.arange(SIZE), self._weights[key]) for key in np.ndindex(SIZE, SIZE)}
        self._bounds = {key: list(accumulate(self._weights[key].tolist())) for key in np.ndindex(SIZE, SIZE)}

    def block(self, context: Sequence[int], draft_key: int, length: int) -> tuple[list[int], list[bytes]]:
        pair = (context[-2], context[-1])
        tokens, rows = [], []
        for draw in draft_draws(draft_key, len(context), length).tolist():
            tokens.append(bisect_right(self._bounds[pair], draw))
            rows.append(self._rows[pair])
            pair = (pair[1], tokens[-1])
        return tokens, rows


@dataclass
class Text:
    """A session as its router sees it; `ahead`: blocks that it has sent for outcomes of the block in flight."""

    session_id: int
    draft_key: int
    context: list[int]
    block: list[int] = field(default_factory=list)
    ahead: dict[Outcome, list[int]] = field(default_factory=dict)
    disliked: set[Outcome] = field(default_factory=set)


class Router:
    """Sends blocks, and blocks ahead for outcomes drawn without a look at any token, some of them late."""

    def __init__(self, stepper: Stepper, rule: Rule, sampling: Sampling, count: int, choose: Chooser) -> None:
        self.stepper, self.choose = stepper, choose
        self.draft = HonestDraft(sampling.temperature)
        self.random = np.random.default_rng(5)
        keys = self.random.integers(0, 2**63, (count, 2)).tolist()
        self.texts = [Text(i, draft_key, [0, 1]) for i, (_, draft_key) in enumerate(keys)]
        for i, (verify_key, draft_key) in enumerate(keys):
            stepper.open(
                make_spec(
                    [0, 1], session_id=i, rule=rule, sampling=sampling, verify_key=verify_key, draft_key=draft_key,
                    max_output_tokens=TOKENS,
                )
            )  # fmt: skip

    def run(self) -> torch.Tensor:
        """Output tokens [count, TOKENS]."""
        for text in self.texts:
            self.send(text)
        while self.stepper.core.sessions:
            for text in self._open_texts():
                self.send_ahead(text)
            before = {text.session_id: list(text.context) for text in self._open_texts()}
            self.stepper.stream.answers.clear()
            self.stepper.tick()
            for text in self._open_texts():
                if self.random.random() < 0.3:
                    self.send_ahead(text, before[text.session_id])
            for answer in list(self.stepper.stream.answers):
                assert isinstance(answer, StepResult), answer
                self.take(self.texts[answer.session_id], answer)
        return torch.tensor([text.context[2:] for text in self.texts])

    def _open_texts(self) -> Iterator[Text]:
        return (self.texts[session_id] for _, session_id in list(self.stepper.core.sessions))

    def send(self, text: Text, length: int | None = None) -> None:
        length = int(self.random.integers(0, LENGTH + 1)) if length is None else length
        text.block, rows = self.draft.block(text.context, text.draft_key, length)
        self.stepper.send(text.session_id, len(text.context), text.block, rows)

    def send_ahead(self, text: Text, context: Sequence[int] | None = None) -> None:
        """Blocks for some outcomes of the step in flight, or of the one just answered if that is not known yet."""
        context = text.context if context is None else context
        outcomes = [(k, token) for k in range(len(text.block) + 1) for token in range(SIZE)]
        for at in self.random.permutation(len(outcomes))[: MAX_AHEAD - len(text.ahead)]:
            kept, token = outcomes[at]
            outcome = Outcome(len(context), kept, token)
            grown = [*context, *text.block[:kept], token]
            block, rows = self.draft.block(grown, text.draft_key, int(self.random.integers(1, LENGTH + 1)))
            if outcome in text.ahead or outcome in text.disliked:
                continue
            if not self.choose(block):
                text.disliked.add(outcome)
            else:
                text.ahead[outcome] = block
                self.stepper.send(text.session_id, len(grown), block, rows, after=outcome)

    def take(self, text: Text, answer: StepResult) -> None:
        outcome = Outcome(answer.position, answer.num_accepted, answer.token_ids[-1])
        assert answer.position == len(text.context)
        assert list(answer.token_ids[:-1]) == text.block[: answer.num_accepted][: len(answer.token_ids) - 1]
        text.context += answer.token_ids
        sent = text.ahead.get(outcome)
        if sent is not None:
            text.block = sent
        elif answer.finish_reason is None:
            self.send(text, 0 if outcome in text.disliked else None)
        text.ahead.clear()
        text.disliked.clear()


class TableOn(TableTarget):
    """A table whose logits are on a device: there the engine verifies by what is compiled for it."""

    def __init__(self, device: str) -> None:
        super().__init__(TARGET, max_context_tokens=64)
        self._device = device

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        return super().forward(spans).to(self._device)


def law_p(
    rule: Rule, sampling: Sampling, count: int, choose: Chooser = send_all, device: str = "cpu"
) -> tuple[float, int]:
    """p-value of the transitions, and how many blocks sent ahead were taken."""
    stepper = Stepper(
        TableOn(device), num_blocks=2 * count,
        limits=TickLimits(8192, 8192), entry_limits=EntryLimits(max_conditional=MAX_AHEAD),
    )  # fmt: skip
    tokens = Router(stepper, rule, sampling, count, choose).run()
    law_at = law_by_context(torch.from_numpy(TARGET), sampling)
    p_value = transitions_p(tokens, law_at, SIZE, full_history=False)
    return p_value, stepper.core.counters["conditional_taken"]


@pytest.mark.parametrize("device", CPU_AND_GPU)
@pytest.mark.parametrize(("rule", "temperature"), [(Rule.BLOCK, 0.5), (Rule.TOKEN, 1.7), (Rule.BLOCK, 1.7)])
def test_the_law_holds_with_blocks_sent_ahead(rule: Rule, temperature: float, device: str) -> None:
    p_value, taken = law_p(rule, Sampling(temperature=temperature), 1500, device=device)
    assert taken > 1000
    assert p_value > 1e-6


def test_a_router_that_sends_only_what_it_likes_is_found() -> None:
    """C36: a block that is not sent because of what it holds (a plain step follows instead) biases the text."""
    p_value, taken = law_p(Rule.BLOCK, Sampling(temperature=1.7), 1500, only_nice_ones)
    assert taken > 300
    assert p_value < 1e-12

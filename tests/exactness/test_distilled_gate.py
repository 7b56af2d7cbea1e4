"""Gates 1 to 3 with the drafts that are shipped: greedy text is transformers' own, one seed is one text, and what is
sampled has the target's law. Real weights, heads over part of the vocabulary, rows of the real size."""

from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest
import torch
from distilled_models import NAMES, VOCABULARY, WITH_PAST, StandIn, stand_in
from law_statistics import chi_square
from scipy import stats
from verifier_parts import Stepper, make_spec

from specmesh.kernels.inputs import VerifyInput
from specmesh.kernels.ops import verify
from specmesh.model.spans import Span
from specmesh.runtime.rows import check_block
from specmesh.runtime.types import Rule, Sampling, StepResult

PROMPTS = ([17, 4002, 981], [int(x) for x in np.random.default_rng(5).integers(0, VOCABULARY, 40)])
NUM_TOKENS = 16
GREEDY = Sampling(temperature=0.0)
Schedule = Sequence[tuple[str | None, int]]
"""(draft, block length) by step, over and over; None decodes plainly."""


@pytest.fixture(scope="module")
def models() -> StandIn:
    return stand_in()


def run(models: StandIn, schedules: Sequence[Schedule], sampling: Sampling, rule: Rule, seed: int) -> list[list[int]]:
    """Texts of all schedules on all prompts, sessions side by side in one engine."""
    stepper = Stepper(models.paged, num_blocks=64 * len(schedules))
    sessions = dict(enumerate((prompt, schedule) for schedule in schedules for prompt in PROMPTS))
    texts: dict[int, list[int]] = {session_id: list(prompt) for session_id, (prompt, _) in sessions.items()}
    for session_id, (prompt, _) in sessions.items():
        spec = make_spec(
            prompt,
            session_id=session_id,
            sampling=sampling,
            rule=rule,
            verify_key=seed,
            draft_key=seed,
            max_output_tokens=NUM_TOKENS,
        )
        stepper.open(spec)
    for step in count():
        live = [key[1] for key in stepper.core.sessions]
        if not live:
            break
        wanted: dict[tuple[str, int], list[int]] = {}
        blocks: dict[int, tuple[list[int], list[bytes]]] = {session_id: ([], []) for session_id in live}
        for session_id in live:
            prompt, schedule = sessions[session_id]
            name, length = schedule[step % len(schedule)]
            length = min(length, len(prompt) + NUM_TOKENS - len(texts[session_id]) - 1)
            if name is not None and length > 0:
                wanted.setdefault((name, length), []).append(session_id)
        for (name, length), ids in wanted.items():
            contexts = {session_id: texts[session_id] for session_id in ids}
            keys = dict.fromkeys(ids, seed)
            blocks |= models.drafts[name].blocks(contexts, length, sampling=sampling, rule=rule, keys=keys)
        for session_id, (ids, rows) in blocks.items():
            stepper.send(session_id, len(texts[session_id]), ids, rows)
        stepper.stream.answers.clear()
        stepper.tick()
        for answer in stepper.stream.answers:
            assert isinstance(answer, StepResult), answer
            texts[answer.session_id] += answer.token_ids
    for drafts in models.drafts.values():
        drafts.forget(list(sessions))
    return [texts[session_id][len(prompt) :] for session_id, (prompt, _) in sessions.items()]


SCHEDULES: list[Schedule] = [[(None, 0)]]
SCHEDULES += [[(name, length)] for name in NAMES for length in (2, 8)]
SCHEDULES += [[("code", 2), ("general", 5), (None, 0), ("prose", 1)], [("general", 8), (WITH_PAST, 4), ("prose", 4)]]


@pytest.mark.slow
def test_greedy_text_is_that_of_generate_whatever_drafts(models: StandIn) -> None:
    """Gate 2: every draft at lengths 2 and 8, and drafts that change each step."""
    truths = [models.greedy(prompt, NUM_TOKENS) for prompt in PROMPTS]
    texts = run(models, SCHEDULES, GREEDY, Rule.BLOCK, seed=1)
    assert texts == truths * len(SCHEDULES)


@pytest.mark.slow
def test_one_seed_is_one_text_whatever_drafts(models: StandIn) -> None:
    """Gate 3."""
    schedules = [SCHEDULES[0], *([(name, 4)] for name in NAMES), *SCHEDULES[-2:]]
    different = set()
    for seed, sampling in [(7, Sampling()), (8, Sampling(temperature=0.6, top_p=0.9)), (9, Sampling(top_k=20))]:
        texts = run(models, schedules, sampling, Rule.COUPLED, seed=seed)
        assert texts == texts[: len(PROMPTS)] * len(schedules)
        different.add(tuple(texts[0]))
    assert len(different) == 3


class Laws:
    """The target's law of three ids after a context, and its raw logits; each is computed once."""

    def __init__(self, models: StandIn, sampling: Sampling) -> None:
        models.paged.allocate_cache(2)
        self._models = models
        self._sampling = sampling
        self._logits: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, context: tuple[int, ...]) -> torch.Tensor:
        if context not in self._logits:
            with torch.inference_mode():
                row = self._models.paged.forward([Span(list(context), 0, (0, 1), len(context) - 1)])
            self._logits[context] = row[0].float()
        return self._logits[context]

    def law(self, context: tuple[int, ...]) -> dict[int, float]:
        scaled = self.logits(context).double() / self._sampling.temperature
        values, ids = scaled.topk(self._sampling.top_k)
        return dict(zip(ids.tolist(), values.softmax(0).tolist(), strict=True))


NUM_TEXTS = 384
BATCH = 64
LAW_SAMPLING = Sampling(temperature=0.8, top_k=3)


def pairs_of_tokens(
    models: StandIn, laws: Laws, name: str, rule: Rule, *, verified: bool = True
) -> tuple[np.ndarray, int]:
    """First two tokens of many texts, and how many drafts were kept; all of them when not `verified`."""
    prompt, pairs, num_kept = PROMPTS[0], [], 0
    for first in range(0, NUM_TEXTS, BATCH):
        keys = {session: 1 + 7_919 * (first + session) for session in range(BATCH)}
        contexts = dict.fromkeys(keys, prompt)
        blocks = models.drafts[name].blocks(contexts, 2, sampling=LAW_SAMPLING, rule=rule, keys=keys)
        models.drafts[name].forget(list(keys))
        for session, (ids, rows) in blocks.items():
            refusal, decoded = check_block(
                ids, rows, vocabulary_size=VOCABULARY, draft_key=keys[session], block_start=len(prompt)
            )
            assert refusal is None
            emitted: list[int] = [] if verified else ids
            while len(emitted) < 2:
                context = (*prompt, *emitted)
                drafted, given = ([], []) if emitted else (ids, decoded)
                logits = torch.stack([laws.logits((*context, *drafted[:kept])) for kept in range(len(drafted) + 1)])
                asked = VerifyInput(
                    len(context), tuple(drafted), tuple(given), LAW_SAMPLING, rule, 10**9 + keys[session], None
                )
                (outcome,) = verify(logits, [asked], vocabulary_size=VOCABULARY)
                num_kept += outcome.num_accepted
                emitted += [*drafted[: outcome.num_accepted], outcome.next_token]
            pairs.append(emitted[:2])
    return np.array(pairs), num_kept


def p_value(laws: Laws, pairs: np.ndarray) -> float:
    """Chi-square of the first two tokens against the target's own law of them."""
    prompt = tuple(PROMPTS[0])
    expected = {
        (one, two): chance * then * len(pairs)
        for one, chance in laws.law(prompt).items()
        for two, then in laws.law((*prompt, one)).items()
    }
    observed = [float((pairs == cell).all(axis=1).sum()) for cell in expected]
    forbidden = len(pairs) - sum(observed)
    statistic, freedom = chi_square(np.array([*observed, forbidden]), np.array([*expected.values(), 0.0]))
    return float(stats.chi2.sf(statistic, freedom))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("code", Rule.BLOCK),
        ("prose", Rule.TOKEN),
        ("general", Rule.BLOCK),
        ("general", Rule.TOKEN),
        (WITH_PAST, Rule.BLOCK),
        (WITH_PAST, Rule.TOKEN),
    ],
)
def test_sampled_text_has_the_targets_law(models: StandIn, name: str, rule: Rule) -> None:
    """Gate 1: the first two tokens of many texts. The near draft is kept in part, the far ones hardly ever."""
    laws = Laws(models, LAW_SAMPLING)
    pairs, num_kept = pairs_of_tokens(models, laws, name, rule)
    assert p_value(laws, pairs) > 1e-6
    if name.startswith("general"):
        assert 0.1 * NUM_TEXTS < num_kept < 1.9 * NUM_TEXTS


def test_the_law_gate_can_fail(models: StandIn) -> None:
    """The near draft's own text, unverified."""
    laws = Laws(models, LAW_SAMPLING)
    pairs, _ = pairs_of_tokens(models, laws, "general", Rule.TOKEN, verified=False)
    assert p_value(laws, pairs) < 1e-12

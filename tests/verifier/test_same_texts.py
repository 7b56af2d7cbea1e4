"""The same texts with and without sharing, with little and much memory, alone and together (float32)."""

import numpy as np
import pytest
from devices import CPU_AND_GPU
from verifier_models import VOCABULARY, TinyModel, tiny_model
from verifier_parts import Stepper, make_spec

from specmesh.runtime.types import Rule, Sampling, SessionSpec, StepResult
from specmesh.verifier.batcher import TickLimits

NUM_TOKENS = 40
PREFIX = np.random.default_rng(0).integers(0, VOCABULARY, 64).tolist()
LENGTHS = (64, 48, 64)
"""Of the common beginning; some contexts are nothing else, and some end with a block."""


@pytest.fixture(scope="module", params=CPU_AND_GPU)
def model(request: pytest.FixtureRequest) -> TinyModel:
    return tiny_model(seed=2, device=request.param)


def specs() -> list[SessionSpec]:
    return [
        make_spec(
            PREFIX[:length] + [index] * (index % 3), session_id=index, rule=Rule.COUPLED, verify_key=index,
            sampling=Sampling(temperature=0.9, top_p=0.97), max_output_tokens=NUM_TOKENS,
        )
        for index, length in enumerate(LENGTHS)
    ]  # fmt: skip


def texts(stepper: Stepper, sessions: list[SessionSpec]) -> dict[int, list[int]]:
    """Each session is opened when the one before has two tokens, so that there is something to share."""
    random = np.random.default_rng(1)
    found: dict[int, list[int]] = {spec.session_id: [] for spec in sessions}
    waiting = list(sessions)
    while waiting or stepper.core.sessions or stepper.core.waiting:
        if waiting and all(len(found[spec.session_id]) >= 2 for spec in sessions[: len(sessions) - len(waiting)]):
            stepper.open(waiting.pop(0))
        for (_, session_id), session in list(stepper.core.sessions.items()):
            if session.entry is None:
                drafts = random.integers(0, VOCABULARY, int(random.integers(0, 5))).tolist()
                stepper.send(session_id, session.position, drafts)
        stepper.stream.answers.clear()
        stepper.tick()
        for answer in stepper.stream.answers:
            assert isinstance(answer, StepResult), answer
            found[answer.session_id] += answer.token_ids
    assert stepper.backend.num_free_blocks == stepper.backend.num_blocks
    return found


def test_neither_sharing_nor_memory_nor_company_changes_a_text(model: TinyModel) -> None:
    alone: dict[int, list[int]] = {}
    for spec in specs():
        alone |= texts(Stepper(model.paged, prefix_sharing=False), [spec])
    for sharing, num_blocks in ((True, 64), (False, 12), (True, 9)):
        stepper = Stepper(model.paged, num_blocks=num_blocks, prefix_sharing=sharing, limits=TickLimits(64, 50))
        model.paged.warm_up(32, 32)
        assert texts(stepper, specs()) == alone
        assert (stepper.core.counters["preemptions"] > 0) == (num_blocks < 64)
        assert (stepper.core.counters["tokens_found_cached"] >= 90) == sharing

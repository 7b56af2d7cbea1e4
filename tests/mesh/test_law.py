"""Gate 1 through the three running services: the text has the target's own law."""

import numpy as np
import pytest
import torch
from law_statistics import Law, law_by_context, transitions_p
from mesh_calls import at_most, generate, request
from mesh_processes import Running

from specmesh.runtime.types import Sampling
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

NUM_SEQUENCES, NUM_TOKENS = 120, 300
SESSIONS = 60
WORST_P = 1e-9
"""Keys come from the system's entropy: a run without fault must not fail once in a million."""
CERTAIN_P = 1e-12
PROMPT = (0, 1)
CONFIGURATIONS = [
    ("BLOCK", {"temperature": 0.95}, ["near"], 4),
    ("TOKEN", {"temperature": 1.7, "top_k": 6}, ["near", "far"], 3),
    ("COUPLED", {"temperature": 0.5, "top_p": 0.9}, ["near"], 8),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "sampling", "arms", "length"), CONFIGURATIONS, ids=[each[0] for each in CONFIGURATIONS]
)
async def test_transitions_follow_the_target(
    router: RouterServiceStub, mesh: Running, rule: str, sampling: dict[str, float], arms: list[str], length: int
) -> None:
    message = request(
        PROMPT,
        NUM_TOKENS,
        arms=arms,
        block_length=length,
        sampling=sampling | {"rule": f"VERIFICATION_RULE_{rule}"},  # type: ignore[operator]
    )
    answers = await at_most(SESSIONS, [generate(router, message) for _ in range(NUM_SEQUENCES)])
    drafted = sum(answer.finished.usage.drafted_token_count for answer in answers if answer.finished)
    accepted = sum(answer.finished.usage.accepted_token_count for answer in answers if answer.finished)
    assert 0.2 < accepted / drafted < 0.99, "the gate is about blocks of which some are kept and some are not"
    tokens = torch.from_numpy(np.array([answer.token_ids for answer in answers]))
    target, size = torch.from_numpy(mesh.tables.logits), mesh.tables.vocabulary_size
    law_at = law_by_context(target, Sampling(**sampling))  # type: ignore[arg-type]
    assert transitions_p(tokens, law_at, size, full_history=False) > WORST_P


@pytest.mark.parametrize("sampling", [each[1] for each in CONFIGURATIONS], ids=[each[0] for each in CONFIGURATIONS])
def test_the_gate_sees_a_wrong_law_and_passes_a_right_one(mesh: Running, sampling: dict[str, float]) -> None:
    """As much text, from a fixed seed, at 1.4 times the temperature and at the target's own: the gate can fail."""
    target, size = torch.from_numpy(mesh.tables.logits), mesh.tables.vocabulary_size
    law_at = law_by_context(target, Sampling(**sampling))  # type: ignore[arg-type]
    warmer = law_by_context(target, Sampling(**sampling | {"temperature": sampling["temperature"] * 1.4}))  # type: ignore[arg-type]
    assert transitions_p(sampled(warmer, size), law_at, size, full_history=False) < CERTAIN_P
    assert transitions_p(sampled(law_at, size), law_at, size, full_history=False) > WORST_P


def sampled(law_at: Law, size: int) -> torch.Tensor:
    """Text of a law over the last two tokens, `[NUM_SEQUENCES, NUM_TOKENS]`."""
    random = np.random.default_rng(17)
    cumulative = np.array([[np.cumsum(law_at((first, second))) for second in range(size)] for first in range(size)])
    tokens = np.tile(PROMPT, (NUM_SEQUENCES, 1))
    for _ in range(NUM_TOKENS):
        shares = cumulative[tokens[:, -2], tokens[:, -1]]
        drawn = (random.random((NUM_SEQUENCES, 1)) * shares[:, -1:] >= shares).sum(axis=1)
        tokens = np.column_stack((tokens, drawn))
    return torch.from_numpy(tokens[:, len(PROMPT) :])

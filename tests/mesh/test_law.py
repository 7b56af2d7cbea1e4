"""Gate 1 through the three running services: the text has the target's own law."""

import numpy as np
import pytest
import torch
from law_statistics import law_by_context, transitions_p
from mesh_calls import at_most, generate, request
from mesh_processes import Running

from specmesh.runtime.types import Sampling
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

NUM_SEQUENCES, NUM_TOKENS = 120, 300
SESSIONS = 60
WORST_P = 1e-6
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
    """Keys come from the system's entropy here: a p-value under 1e-6 is a fault, not bad luck."""
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
    warmer = law_by_context(target, Sampling(**sampling | {"temperature": sampling["temperature"] * 1.25}))  # type: ignore[arg-type]
    assert transitions_p(tokens, warmer, size, full_history=False) < 1e-12, "a gate that cannot fail"

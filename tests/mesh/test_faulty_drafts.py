"""Drafts that die, sleep or lie: they cost speed only."""

from pathlib import Path

import numpy as np
import pytest
import torch
from law_statistics import law_by_context, transitions_p
from mesh_calls import arms_of, at_most, generate, request, router_at, wait_ready, wait_state
from mesh_processes import Running, Service, pool_of, start_router
from mesh_tables import TableFiles

from specmesh.draft.ngram_file import NgramTable, law_to_levels, save_table
from specmesh.runtime.types import Sampling
from specmesh.v1 import router_service_pb2 as pb
from specmesh.verifier.target import save_table as save_target

GREEDY = {"temperature": 0}


def faulty(mesh: Running, path: Path | None = None, **faults: object) -> Service:
    drafter = {"kind": "table", "settings": {"path": path or mesh.tables.near}} | faults
    return Service("draft", mesh.folder, kind="faulty", drafter=drafter)


async def test_the_only_draft_dies_in_the_middle(mesh: Running) -> None:
    """C23: after 5 tokens; the stream completes with the target's own ids, the arm is out and comes back."""
    with faulty(mesh, exit_after_tokens=5) as mortal, start_router(mesh, [pool_of(mortal)]) as router:
        async with router_at(router.address) as stub:
            await wait_ready(stub, "pool")
            plain = await generate(stub, request((3, 5), 60, arms=[], sampling=GREEDY))
            drafted = await generate(stub, request((3, 5), 60, sampling=GREEDY, output={"step_reports": True}))
            assert drafted.summary == plain.summary
            assert drafted.steps[0].accepted_count > 0
            await wait_state(stub, {"pool": pb.ARM_STATE_COOLING})
            port = int(mortal.address.rpartition(":")[2])
            well = Service("draft", mesh.folder, kind="table", drafter__path=mesh.tables.near, server__port=port)
            with well:
                assert well.address == mortal.address
                await wait_ready(stub, "pool", seconds=10)


async def test_a_draft_that_sleeps_costs_one_deadline(mesh: Running) -> None:
    """C23: 30 s of sleep, a deadline of 400 ms; afterwards it is not waited for."""
    with faulty(mesh, hang_after_tokens=1) as sleeper, start_router(mesh, [pool_of(sleeper)]) as router:
        async with router_at(router.address) as stub:
            await wait_ready(stub, "pool")
            answer = await generate(stub, request((3, 5), 100, sampling=GREEDY, output={"step_reports": True}))
            assert len(answer.token_ids) == 100
            waited = [step for step in answer.steps if step.timing.draft.ToMilliseconds() > 200]
            assert len(waited) == 1
            assert waited[0].fallback_reason == pb.FALLBACK_REASON_TIMEOUT
            assert waited[0].timing.draft.ToMilliseconds() < 600
            assert {step.fallback_reason for step in answer.steps[1:-1]} == {pb.FALLBACK_REASON_NO_ARM}


async def test_a_draft_that_declares_what_it_does_not_sample_is_quarantined(mesh: Running, tmp_path: Path) -> None:
    """C35: T = [.001, .599, .400] and a draft that always sends token 0 with weight 1 of 2^24: the law is kept."""
    law = np.array([0.001, 0.599, 0.400])
    logits = np.broadcast_to(np.log(law), (3, 3, 3)).astype(np.float32)
    save_target(tmp_path / "target.npz", logits)
    save_table(tmp_path / "draft.npz", NgramTable(law_to_levels(np.broadcast_to(law, (3, 3, 3)).copy()), 3))
    with (
        Service("verifier", mesh.folder, model=f"table:{tmp_path / 'target.npz'}") as verifier,
        faulty(mesh, tmp_path / "draft.npz", lie="always_zero") as zero,
        faulty(mesh, tmp_path / "draft.npz", lie="other_token") as other,
        start_router(mesh, [pool_of(zero, "zero"), pool_of(other, "other")], verifiers=[verifier.address]) as router,
    ):
        async with router_at(router.address) as stub:
            await wait_ready(stub, "zero", "other")
            for name, steps in (("zero", 1), ("other", 8)):
                message = request(max_output_tokens=1000, arms=[name], output={"step_reports": True})
                answer = await generate(stub, message)
                refused_steps = [s for s in answer.steps if s.fallback_reason == pb.FALLBACK_REASON_INVALID_BLOCK]
                assert len(refused_steps) == 1
                assert answer.steps.index(refused_steps[0]) < steps
                assert answer.token_ids.count(0) < 20
                assert abs(answer.token_ids.count(1) - 599) < 100
                assert (await arms_of(stub))[name].state == pb.ARM_STATE_QUARANTINED


@pytest.mark.slow
async def test_late_blocks_of_a_draft_that_stops_early_are_cut(mesh: Running) -> None:
    """C36: how late a block is depends on its values; dropped whole it would bias the text, cut it does not."""
    lazy = Service(
        "draft",
        mesh.folder,
        kind="faulty",
        drafter={"kind": "table", "settings": {"path": mesh.tables.near}, "token_seconds": 0.015},
        stopping__min_probability=0.3,
    )
    settings = {"drafts__block_deadline_ms": 50, "drafts__min_deadline_ms": 50, "drafts__late_blocks": 1_000_000}
    with lazy, start_router(mesh, [pool_of(lazy)], **settings, drafts__cooldown_seconds=0.01) as router:
        async with router_at(router.address) as stub:
            await wait_ready(stub, "pool")
            message = request(max_output_tokens=300, output={"step_reports": True})
            answers = await at_most(60, [generate(stub, message) for _ in range(60)])
            lengths = [step.drafted_count for answer in answers for step in answer.steps]
            assert sum(1 <= length < 4 for length in lengths) > 0.2 * len(lengths)
            tokens = torch.from_numpy(np.array([answer.token_ids for answer in answers]))
            assert law_p(mesh.tables, tokens) > 1e-9, "keys are fresh: below this it is a fault, not bad luck"


def law_p(tables: TableFiles, tokens: torch.Tensor) -> float:
    law_at = law_by_context(torch.from_numpy(tables.logits), Sampling())
    return transitions_p(tokens, law_at, tables.vocabulary_size, full_history=False)

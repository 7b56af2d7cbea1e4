"""Which rule a request gets, and what it gives: seeds, trust, padded vocabularies."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from mesh_calls import at_most, generate, refused, request, router_at, wait_ready
from mesh_processes import Running, Service, patient_router, pools_of
from mesh_tables import softmax
from scipy import stats

from specmesh.draft.ngram_file import NgramTable, law_to_levels
from specmesh.draft.ngram_file import save_table as save_draft
from specmesh.runtime.status import from_rpc_error
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub
from specmesh.verifier.target import save_table as save_target

BLOCK, COUPLED = pb.VERIFICATION_RULE_BLOCK, pb.VERIFICATION_RULE_COUPLED
WORST_P = 1e-9
"""Keys are fresh here: below this it is a fault, not bad luck."""


@pytest.fixture(scope="module")
def wary(mesh: Running) -> Iterator[Service]:
    """A router that trusts `near`, and neither `far` nor `look`, which sends no rows."""
    pools = [pool | {"trust": "full" if pool["name"] == "near" else "untrusted"}
             for pool in mesh.pools("near", "far", "look")]  # fmt: skip
    with patient_router(mesh.folder, mesh.verifier, pools) as router:
        yield router


@pytest.fixture
async def stub(wary: Service) -> AsyncIterator[RouterServiceStub]:
    async with router_at(wary.address) as stub:
        await wait_ready(stub, "near", "far", "look")
        yield stub


@pytest.mark.parametrize(
    ("arms", "rule"), [(None, COUPLED), (["far"], COUPLED), (["near", "look"], COUPLED), (["near"], BLOCK), ([], BLOCK)]
)
async def test_the_rule_follows_from_the_trust_in_the_pools_permitted(
    stub: RouterServiceStub, arms: list[str] | None, rule: int
) -> None:
    """Without a seed: BLOCK where every permitted pool is trusted, else COUPLED with a seed that repeats the text."""
    answer = await generate(stub, request(arms=arms))
    assert answer.started is not None
    assert answer.started.rule == rule
    assert answer.started.HasField("seed") == (rule == COUPLED)
    if rule == COUPLED:
        again = await generate(stub, request(arms=["near"], sampling={"seed": answer.started.seed}))
        assert again.token_ids == answer.token_ids
        other = await generate(stub, request(arms=arms))
        assert other.started is not None
        assert other.started.seed != answer.started.seed


@pytest.mark.parametrize("rule", ["BLOCK", "TOKEN"])
async def test_rows_of_an_untrusted_pool_are_never_asked_for_under_block_and_token(
    stub: RouterServiceStub, rule: str
) -> None:
    """C37's kind: a draft that cannot be trusted drafts where nothing it says is believed, and there only."""
    sampling = {"rule": f"VERIFICATION_RULE_{rule}"}
    reports = {"step_reports": True}
    barred = await generate(stub, request(arms=["far"], sampling=sampling, output=reports))
    assert {step.arm for step in barred.steps} == {""}
    assert len(barred.token_ids) == len(barred.steps) == 20
    greedy = {"arms": ["far"], "sampling": sampling | {"temperature": 0}}
    for fields in (greedy, {"arms": ["look"], "sampling": sampling}, {"arms": ["near"], "sampling": sampling}):
        answer = await generate(stub, request(output=reports, **fields))
        assert any(step.drafted_count for step in answer.steps)


@pytest.mark.parametrize("rule", ["BLOCK", "TOKEN"])
async def test_a_seed_with_a_rule_that_cannot_keep_it_is_refused(stub: RouterServiceStub, rule: str) -> None:
    for seed in (0, 2**64 - 1):
        error = await refused(generate(stub, request(sampling={"seed": seed, "rule": f"VERIFICATION_RULE_{rule}"})))
        assert from_rpc_error(error).field == "sampling.rule"
        assert "seed" in str(error.details())


@pytest.fixture(scope="module")
def padded(mesh: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A target of vocabulary 4 with a head 6 wide, logits [1, 2, 3, 0, 9, 9], and a draft of another law."""
    folder: Path = tmp_path_factory.mktemp("padded")
    row = np.array([1, 2, 3, 0, 9, 9], np.float32)
    save_target(folder / "target.npz", np.broadcast_to(row, (4, 4, 6)))
    law = np.broadcast_to(np.array([0.4, 0.3, 0.2, 0.1]), (4, 4, 4)).copy()
    save_draft(folder / "draft.npz", NgramTable(law_to_levels(law), 4))
    with ExitStack() as stack:
        verifier = stack.enter_context(Service("verifier", folder, model=f"table:{folder / 'target.npz'}"))
        draft = stack.enter_context(Service("draft", folder, kind="table", drafter__path=folder / "draft.npz"))
        yield stack.enter_context(patient_router(folder, verifier, pools_of({"plain": draft})))


@pytest.mark.parametrize("rule", ["BLOCK", "TOKEN", "COUPLED"])
async def test_the_padding_of_a_head_is_never_said(padded: Service, rule: str) -> None:
    """C14 through the mesh: T = [.087, .237, .644, .032]; ids 4 and 5 never, drafted and plain."""
    law = softmax(np.array([1.0, 2.0, 3.0, 0.0]))
    assert law == pytest.approx([0.087, 0.237, 0.644, 0.032], abs=5e-4)
    async with router_at(padded.address) as stub:
        await wait_ready(stub, "plain")
        for arms in (["plain"], []):
            message = request(max_output_tokens=500, arms=arms, sampling={"rule": f"VERIFICATION_RULE_{rule}"})
            answers = await at_most(10, [generate(stub, message) for _ in range(20)])
            counts = np.bincount(np.concatenate([answer.token_ids for answer in answers]), minlength=6)
            assert counts[4:].sum() == 0
            assert counts.sum() == 10_000
            assert stats.chisquare(counts[:4], law * 10_000).pvalue > WORST_P
        greedy = await generate(stub, request(sampling={"temperature": 0}))
        assert greedy.token_ids == [2] * 20
        error = await refused(generate(stub, request(prompt=[4])))
        assert from_rpc_error(error).field == "tokens.ids[0]"

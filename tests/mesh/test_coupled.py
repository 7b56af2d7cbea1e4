"""Gate 3 through the running mesh: under one seed the text is the same whichever drafts answered, lied, died or were
never there, at any block length, alone or in any batch."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
from mesh_calls import Generation, arms_of, at_most, generate, request, router_at, wait_ready
from mesh_processes import Running, Service

from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

SEEDS = range(20)
NUM_TOKENS = 48
SAMPLINGS: list[dict[str, float]] = [
    {"temperature": 1.0},
    {"temperature": 0.5, "top_p": 0.9},
    {"temperature": 1.7, "top_k": 5, "frequency_penalty": 0.2},
    {"temperature": 0.95, "min_p": 0.05, "repetition_penalty": 1.1},
]
FAULTS: dict[str, dict[str, object]] = {
    "liar": {"lie": "other_token"},
    "stranger": {"lie": "out_of_vocabulary"},
    "nan": {"nan_at_offset": 1},
    "mortal": {"exit_after_tokens": 120},
    "hanging": {"hang_after_tokens": 100},
}
SCHEDULES: dict[str, tuple[list[str] | None, int, int]] = {
    # arms, block length, sessions at a time
    "near drafts of 1": (["near"], 1, 20),
    "near drafts of 8, alone": (["near"], 8, 1),
    "far drafts of 4": (["far"], 4, 20),
    "prompt lookup of 6": (["look"], 6, 7),
    "a draft that lies": (["liar"], 5, 20),
    "a draft of tokens that do not exist": (["stranger"], 3, 20),
    "a draft whose numbers are not finite": (["nan"], 4, 20),
    "a draft that dies on the way": (["mortal", "near"], 4, 20),
    "a draft that hangs on the way": (["hanging"], 4, 20),
    "every arm, as a bandit likes": (None, 8, 20),
}


@pytest.fixture(scope="module")
def hostile(mesh: Running) -> Iterator[dict[str, Service]]:
    """Routers with a bandit and with the planner, the same honest pools and faulty ones."""
    with ExitStack() as stack:
        honest = {"kind": "table", "settings": {"path": mesh.tables.near}}
        faulty = {
            name: stack.enter_context(Service("draft", mesh.folder, kind="faulty", drafter=honest | fault))
            for name, fault in FAULTS.items()
        }
        pools = mesh.pools("near", "far", "look")
        pools += [
            {"name": name, "addresses": [service.address], "trust": "untrusted"} for name, service in faulty.items()
        ]
        yield {
            policy: stack.enter_context(
                Service(
                    "router",
                    mesh.folder,
                    verifiers=[mesh.verifier.address],
                    pools=pools,
                    policy__name=policy,
                    drafts__block_deadline_ms=300,
                )
            )
            for policy in ("thompson", "goodput")
        }


@pytest.fixture
async def stub(hostile: dict[str, Service]) -> AsyncIterator[RouterServiceStub]:
    async with router_at(hostile["thompson"].address) as stub:
        yield stub


def messages(arms: list[str] | None, block_length: int | None) -> list[pb.GenerateRequest]:
    return [
        request(
            (seed % 8, 1),
            NUM_TOKENS,
            arms=arms,
            block_length=block_length,
            sampling=SAMPLINGS[seed % len(SAMPLINGS)] | {"seed": seed},
        )
        for seed in SEEDS
    ]


async def run(stub: RouterServiceStub, arms: list[str] | None, length: int, sessions: int) -> list[Generation]:
    return await at_most(sessions, [generate(stub, message) for message in messages(arms, length)])


@pytest.fixture(scope="module")
def plain() -> dict[str, list[list[int]]]:
    """Texts without drafts, made once by the first test that needs them."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
async def test_one_seed_one_text(stub: RouterServiceStub, plain: dict[str, list[list[int]]], schedule: str) -> None:
    """C38: a draft that lies in every way changes nothing."""
    if "ids" not in plain:
        await wait_ready(stub, "near", "far", "look", *FAULTS)
        plain["ids"] = [answer.token_ids for answer in await run(stub, [], 0, 5)]
    arms, length, sessions = SCHEDULES[schedule]
    answers = await run(stub, arms, length, sessions)
    assert [answer.token_ids for answer in answers] == plain["ids"]
    drafted = sum(answer.finished.usage.drafted_token_count for answer in answers if answer.finished)
    assert drafted > 0 or schedule == "a draft of tokens that do not exist", "the schedule must have drafted something"


async def test_one_seed_one_text_under_a_policy_that_asks_every_draft_for_scores(
    hostile: dict[str, Service], plain: dict[str, list[list[int]]]
) -> None:
    """The planner chooses by what drafts say of the text, liars among them, and the text stays what it was."""
    async with router_at(hostile["goodput"].address) as stub:
        await wait_ready(stub, "near", "far", "look", "liar")
        answers = await run(stub, None, 4, 7)
    assert [answer.token_ids for answer in answers] == plain["ids"]
    assert sum(answer.finished.usage.drafted_token_count for answer in answers if answer.finished) > 0


async def test_the_faults_were_noticed(stub: RouterServiceStub) -> None:
    """After all schedules: who died or hung is out, and its reason is said."""
    arms = await arms_of(stub)
    for pool in ("mortal", "hanging"):
        assert arms[pool].state != pb.ARM_STATE_READY
        assert arms[pool].reason

"""What a router tells a draft, captured: a draft in the test's own process, the other services as in production."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from mesh_calls import arms_of, at_most, generate, refused, request, router_at, wait_ready, wait_state
from mesh_processes import Running, Service
from router_fakes import FakeDraft, FakeVerifier, Send, drafted, ended, serving, until, well_behaved

from specmesh.runtime.contract import CONTRACT_VERSION
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.types import ServiceInfo
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub


def info(**changes: Any) -> ServiceInfo:
    fields: dict[str, Any] = {
        "contract_version": CONTRACT_VERSION,
        "model_digest": "c" * 64,
        "tokenizer_digest": "",
        "vocabulary_size": 8,
        "max_context_tokens": 10_000,
        "kind": "table",
        "model_name": "captured",
        "build": "test",
        "max_block_length": 8,
    }
    return ServiceInfo(**(fields | changes))


@asynccontextmanager
async def router_over(
    mesh: Running, drafts: dict[str, FakeDraft], verifier: str = "", **settings: Any
) -> AsyncIterator[RouterServiceStub]:
    """A router process with the mesh's verifier and these drafts, which live here."""
    async with serving(*drafts.values()) as servers:
        pools = [{"name": name, "addresses": [each.address]} for name, each in zip(drafts, servers, strict=True)]
        router = Service(
            "router",
            mesh.folder,
            verifiers=[verifier or mesh.verifier.address],
            pools=pools,
            policy__name="fixed",
            drafts__block_deadline_ms=2000,
            drafts__min_deadline_ms=2000,
            **settings,
        )
        with router:
            address = await asyncio.to_thread(lambda: router.address)  # the verifier may live in this loop
            async with router_at(address) as stub:
                yield stub


async def propose_zero(entry: draft_pb.DraftRequestEntry, send: Send) -> None:
    """Token 0, one-hot, as often as wanted."""
    await send(drafted(entry, 0, *[0] * entry.block_length))
    await send(ended(entry))


async def test_the_next_step_starts_from_what_was_emitted(mesh: Running) -> None:
    """C16: one draft a step; a rejected one leaves no trace in what the draft is told next."""
    fake = FakeDraft(info(), propose_zero)
    async with router_over(mesh, {"zero": fake}) as stub:
        await wait_ready(stub, "zero")
        coupled = {"seed": 4}
        message = request((3, 5), 60, block_length=1, sampling=coupled, output={"step_reports": True})
        answer = await generate(stub, message)
        assert answer.token_ids == (await generate(stub, request((3, 5), 60, arms=[], sampling=coupled))).token_ids
        assert 0 < sum(step.accepted_count for step in answer.steps) < len(answer.steps)
        context = [3, 5, *answer.token_ids]
        known = 0
        for entry, step in zip(fake.entries, answer.steps, strict=False):
            assert list(entry.delta_token_ids) == context[known : entry.position]
            assert step.emitted_count == step.accepted_count + 1
            known = entry.position


@pytest.mark.parametrize("rule", ["BLOCK", "TOKEN"])
async def test_the_verify_key_never_reaches_a_draft(mesh: Running, rule: str) -> None:
    """C37: not in any field, not in any byte order, of anything a draft is sent."""
    fake, verifier = FakeDraft(info(), propose_zero), FakeVerifier(info())
    async with serving(verifier) as (server,), router_over(mesh, {"zero": fake}, server.address) as stub:
        await wait_ready(stub, "zero")
        sampling = {"rule": f"VERIFICATION_RULE_{rule}"}
        await at_most(10, [generate(stub, request(max_output_tokens=40, sampling=sampling)) for _ in range(20)])
        assert len(verifier.opened) == 20
        sent = b"".join(entry.SerializeToString() for entry in fake.entries)
        draft_keys = {entry.draft_key for entry in fake.entries}
        for header, _ in verifier.opened:
            assert header.draft_key in draft_keys
            assert header.draft_key.to_bytes(8, "little") in sent, "a search that finds nothing proves nothing"
            assert header.verify_key not in draft_keys
            for order in ("little", "big"):
                assert header.verify_key.to_bytes(8, order) not in sent  # type: ignore[arg-type]


async def test_a_pool_that_is_barred_gets_nothing_of_a_context(mesh: Running) -> None:
    """C42: by identity and by request; all that the pool is ever sent is the router's own probe."""
    fakes = {"open": FakeDraft(info(), propose_zero), "barred": FakeDraft(info(model_digest="e" * 64), propose_zero)}
    callers = [
        {"name": "team", "token": "t1", "pools": ["open"], "roles": ["client", "debug", "operator"]},
        {"name": "root", "token": "t2", "roles": ["client", "debug", "operator"]},
    ]
    async with router_over(mesh, fakes, callers=callers, policy__settings__fixed_arm="barred") as stub:
        team, root = ({"metadata": (("authorization", f"Bearer {token}"),)} for token in ("t1", "t2"))
        await wait_ready(stub, "open", "barred", **root)
        await until(lambda: bool(fakes["barred"].closed))
        probes = set(fakes["barred"].closed)
        for message in (request(), request(sampling={"seed": 1}), request(arms=["open"])):
            assert len((await generate(stub, message, **team)).token_ids) == 20
        await generate(stub, request(arms=["open"]), **root)
        await generate(stub, request(arms=[]), **root)
        error = await refused(generate(stub, request(arms=["barred"]), **team))
        assert from_rpc_error(error).field == "draft.arms[0]"
        assert not fakes["open"].entries, "the policy's arm is the barred one, and nothing takes its place"
        assert not fakes["barred"].entries
        assert not fakes["barred"].opened
        assert fakes["barred"].closed == probes
        await generate(stub, request(arms=["barred"]), **root)
        assert fakes["barred"].entries
        for call in ({}, {"metadata": (("authorization", "Bearer t3"),)}):
            error = await refused(generate(stub, request(), **call))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_swapped_vocabulary_is_refused_at_registration(mesh: Running) -> None:
    """C14: ids 7 and 8 swapped; the listing names id 7, and requests are served without the arm."""
    pieces = [bytes([each]) * 4 for each in range(10)]
    swapped = [*pieces[:7], pieces[8], pieces[7], pieces[9]]
    verifier = FakeVerifier(
        info(tokenizer_digest="t" * 64, vocabulary_size=10, vocabulary_hashes=b"".join(pieces), max_context_tokens=64)
    )
    fakes = {
        "swapped": FakeDraft(info(tokenizer_digest="s" * 64, vocabulary_size=10, vocabulary_hashes=b"".join(swapped))),
        "same": FakeDraft(info(tokenizer_digest="u" * 64, vocabulary_size=10, vocabulary_hashes=b"".join(pieces))),
        "old": FakeDraft(info(contract_version=CONTRACT_VERSION + 1)),
    }
    async with serving(verifier) as (server,), router_over(mesh, fakes, server.address) as stub:
        incompatible = pb.ARM_STATE_INCOMPATIBLE
        await wait_state(stub, {"swapped": incompatible, "same": pb.ARM_STATE_READY, "old": incompatible})
        arms = await arms_of(stub)
        assert re.search(r"\bid 7\b", arms["swapped"].reason)
        assert "contract" in arms["old"].reason
        await generate(stub, request(max_output_tokens=5))
        assert fakes["same"].entries
        assert not fakes["swapped"].entries
        assert not fakes["old"].entries


async def test_trace_context_and_time_left_travel_with_every_entry(mesh: Running) -> None:
    fake, verifier = FakeDraft(info(), well_behaved), FakeVerifier(info())
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with serving(verifier) as (server,), router_over(mesh, {"draft": fake}, server.address) as stub:
        await wait_ready(stub, "draft")
        await generate(stub, request(), metadata=(("traceparent", trace),))
        entries = [*fake.entries, *verifier.entries]
        assert {entry.traceparent for entry in entries} == {trace}
        assert all(entry.remaining_ms > 0 for entry in entries)
        await generate(stub, request(), metadata=(("traceparent", "rubbish"),))
        assert {entry.traceparent for entry in verifier.entries} == {trace, ""}

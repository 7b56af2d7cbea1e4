"""What a router tells of its steps, beside drafts and verifiers that do as a script says."""

from dataclasses import replace

import pytest
from mesh_calls import generate, request, router_at
from router_fakes import FakeDraft, FakeVerifier, Send, plain_step, step_failure
from traced_router import CALLER, COMPUTE_NS, DRAFT_INFO, GENERATE, INFO, Traced, there_already, traced_router

from specmesh.router.timing import PARTS
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.instruments import HistogramPoint
from specmesh.runtime.telemetry.spans import Kind
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import verifier_service_pb2 as verifier_pb

OPEN = "specmesh.v1.DraftService/Open"
VERIFIER_OPEN = "specmesh.v1.VerifierService/Open"
RUNS = replace(INFO, max_run_tokens=4)


async def test_predicted_drafting_is_overlap_and_not_time() -> None:
    """The parts of each step add up to it, and what was drafted before the step is none of them."""
    draft, verifier = FakeDraft(DRAFT_INFO, there_already), FakeVerifier(INFO)
    async with traced_router(draft, verifier) as traced:
        generation = await traced.generate(max_output_tokens=40, output={"step_reports": True})
        steps = traced.named(names.STEP_SPAN)
        assert len(steps) == len(generation.steps) == 8
        for step, report in zip(steps, generation.steps, strict=True):
            seconds = (step.end_ns - step.start_ns) / 1e9
            parts = {part: float(step.attributes[names.PART_SECONDS + part]) for part in PARTS}  # type: ignore[arg-type]
            assert abs(sum(parts.values()) - seconds) <= 0.02 * seconds
            assert all(value >= 0 for value in parts.values())
            assert parts["draft"] == 0.0
            assert step.attributes[names.PREDICTED] is True
            assert step.attributes[names.OVERLAP] == pytest.approx(COMPUTE_NS / 1e9)
            assert report.predicted
            assert report.timing.draft.ToNanoseconds() == 0
        [family] = [each for each in traced.registry.collect() if each.metric is names.STEP_DURATION]
        sums = {point.values[0]: point.sum for point in family.points if isinstance(point, HistogramPoint)}
        assert sums["draft"] == 0.0
        assert sum(sums[part] for part in PARTS) == pytest.approx(sums["total"])


async def test_a_context_that_a_draft_asks_for_is_brought_within_the_wait_for_its_block() -> None:
    asked: set[int] = set()

    async def forgetful(entry: draft_pb.DraftRequestEntry, send: Send) -> None:
        if entry.session_id not in asked:
            asked.add(entry.session_id)
            needed = draft_pb.ContextNeeded(have_length=0)
            await send(
                draft_pb.DraftResponseEntry(session_id=entry.session_id, position=entry.position, context_needed=needed)
            )
        else:
            await there_already(entry, send)

    draft, verifier = FakeDraft(DRAFT_INFO, forgetful), FakeVerifier(INFO)
    async with traced_router(draft, verifier) as traced:
        await traced.generate(max_output_tokens=20)
        [opened] = traced.named(OPEN)
        first = traced.named(names.DRAFT_SPAN)[0]
        assert opened.kind is Kind.CLIENT
        assert opened.parent_id == first.span_id
        assert not opened.error
        assert first.start_ns <= opened.start_ns <= opened.end_ns <= first.end_ns
        assert len(draft.opened) == 1


async def test_what_a_step_sends_beside_its_messages_hangs_under_the_step() -> None:
    """Once the wait for a block is over its span causes nothing more."""
    draft, verifier = FakeDraft(DRAFT_INFO, there_already), FakeVerifier(INFO)
    async with traced_router(draft, verifier) as traced:
        await traced.generate(max_output_tokens=12)
        drafts = {span.traceparent for span in traced.named(names.DRAFT_SPAN)}
        verifies = {span.traceparent for span in traced.named(names.VERIFY_SPAN)}
        assert {entry.traceparent for entry in draft.entries} == drafts
        assert {entry.traceparent for entry in verifier.entries} == verifies


async def test_what_a_resume_opens_hangs_under_the_wait_that_it_prolongs() -> None:
    """The step's own wait for its outcome, which has the answer of the second verifier; every parent is there."""
    draft, entries = FakeDraft(DRAFT_INFO, there_already), []

    async def fails_once(entry: verifier_pb.VerifyRequestEntry, send: Send) -> None:
        entries.append(entry)
        if len(entries) == 2:
            await send(step_failure(entry, "DRAINING"))
        else:
            await plain_step(entry, send)

    first, second = FakeVerifier(INFO, fails_once), FakeVerifier(INFO, fails_once)
    async with traced_router(draft, first, second) as traced:
        await traced.generate(max_output_tokens=20)
        begun, resumed = traced.named(VERIFIER_OPEN)
        assert len(first.opened) == len(second.opened) == 1
        [call] = traced.named(GENERATE)
        assert begun.parent_id == call.span_id
        waits, steps = traced.named(names.VERIFY_SPAN), traced.named(names.STEP_SPAN)
        assert len(waits) == len(steps) == 4, "a step that is repeated is one step, with one wait"
        wait, step = waits[1], steps[1]
        assert resumed.parent_id == wait.span_id
        assert wait.parent_id == step.span_id
        assert wait.start_ns <= resumed.start_ns <= resumed.end_ns <= wait.end_ns
        assert not wait.error
        assert [entry.traceparent for entry in entries[1:3]] == [wait.traceparent] * 2, "the same step, asked for twice"
        known = {span.span_id for span in traced.spans}
        assert {span.parent_id for span in traced.spans} - known == {CALLER}


async def test_a_resume_within_a_run_hangs_under_the_step_that_met_it() -> None:
    """That step has sent no message of its own, so there is no wait to put it under."""
    draft = FakeDraft(DRAFT_INFO, there_already)
    first, second = FakeVerifier(RUNS), FakeVerifier(RUNS)

    async def loses_the_second_token(entry: verifier_pb.VerifyRequestEntry, send: Send) -> None:
        await plain_step(entry, send)
        if entry.run_count and not (first.opened and second.opened):
            await send(step_failure(moved(entry, 1), "DRAINING"))
        else:
            for offset in range(1, entry.run_count):
                await plain_step(moved(entry, offset), send)

    first.script = second.script = loses_the_second_token
    async with traced_router(draft, first, second) as traced:
        await traced.generate(max_output_tokens=4, arms=[])
        _, resumed = traced.named(VERIFIER_OPEN)
        met = traced.named(names.STEP_SPAN)[1]
        assert met.attributes[names.IN_RUN] is True
        assert resumed.parent_id == met.span_id
        known = {span.span_id for span in traced.spans}
        assert {span.parent_id for span in traced.spans} - known == {CALLER}
        sent = {entry.traceparent for each in (first, second) for entry in each.entries}
        assert sent <= {span.traceparent for span in traced.spans}


def moved(entry: verifier_pb.VerifyRequestEntry, offset: int) -> verifier_pb.VerifyRequestEntry:
    """A later step of the run that it asks for."""
    return verifier_pb.VerifyRequestEntry(session_id=entry.session_id, position=entry.position + offset)


def counted(traced: Traced, metric: names.Metric) -> float:
    [family] = [each for each in traced.registry.collect() if each.metric is metric]
    return sum(sum(point.counts) if isinstance(point, HistogramPoint) else point.value for point in family.points)


async def test_every_step_is_counted_once_traced_or_not() -> None:
    """Also those after the last one that has a span of its own."""
    draft, verifier = FakeDraft(DRAFT_INFO, there_already), FakeVerifier(INFO)
    async with traced_router(draft, verifier) as traced:
        traced_steps = len((await traced.generate(max_output_tokens=30, output={"step_reports": True})).steps)
        assert counted(traced, names.STEPS) == traced_steps == 6
        plain = {"max_output_tokens": names.MAX_STEP_SPANS + 6, "arms": [], "output": {"step_reports": True}}
        later_steps = len((await traced.generate(**plain)).steps)
        assert later_steps == names.MAX_STEP_SPANS + 6
        assert counted(traced, names.STEPS) == traced_steps + later_steps
        async with router_at(traced.address) as stub:
            await generate(stub, request(max_output_tokens=15))
        assert counted(traced, names.STEPS) == traced_steps + later_steps + 3
        assert counted(traced, names.EMITTED) == 30 + names.MAX_STEP_SPANS + 6 + 15
        assert counted(traced, names.STEP_DURATION) == counted(traced, names.STEPS) * (len(PARTS) + 1)
        [rest] = traced.named(names.STEPS_SPAN)
        assert rest.attributes[names.STEP_COUNT] == 6

"""Traces of a running mesh, as a collector of others received them."""

import asyncio
import re
from collections.abc import Iterator, Sequence

import grpc
import pytest
from mesh_calls import generate, refused, request
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from telemetry_parts import Sink, SpanSeen, Watched, needs_rotel, wait_until

from specmesh.client import AsyncClient
from specmesh.router.config import SessionsConfig
from specmesh.router.draft_replica import INLINE_TOKENS
from specmesh.router.timing import PARTS
from specmesh.runtime.telemetry import names
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

pytestmark = [needs_rotel, pytest.mark.slow]

GENERATE = "specmesh.v1.RouterService/Generate"
OPEN = "specmesh.v1.VerifierService/Open"
SERVER, CLIENT = 2, 3
CLIENT_SIDE = {names.RPC_SYSTEM, names.RPC_METHOD, names.RPC_STATUS}
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)


def spans_of(sink: Sink, trace_id: str, count_of_calls: int = 1) -> list[SpanSeen]:
    """All spans of a trace, once its calls have ended and what other processes tell of them has arrived."""

    def complete() -> bool:
        spans = sink.traces().get(trace_id, [])
        return sum(span.name == GENERATE and span.kind == SERVER for span in spans) >= count_of_calls

    wait_until(complete, f"the call of trace {trace_id}")
    wait_until(lambda: settled(sink.traces()[trace_id], {CALLER}), "every parent and every server")
    return sink.traces()[trace_id]


def settled(spans: Sequence[SpanSeen], outside: set[str]) -> bool:
    """No parent is missing, and no server's side of a message that was answered."""
    parents = {span.parent_id for span in spans}
    return not orphans(spans, outside) and all(
        span.span_id in parents for span in spans if span.kind == CLIENT and not span.failed
    )


def orphans(spans: Sequence[SpanSeen], outside: set[str]) -> list[SpanSeen]:
    """Spans whose parent is neither among them nor one of `outside`."""
    known = {span.span_id for span in spans} | outside
    return [span for span in spans if span.parent_id not in known and span.parent_id]


def named(spans: Sequence[SpanSeen], name: str, kind: int | None = None) -> list[SpanSeen]:
    found = [span for span in spans if span.name == name and kind in (None, span.kind)]
    return sorted(found, key=lambda span: span.start_ns)


@pytest.fixture
def application(watched: Watched) -> Iterator[TracerProvider]:
    """OpenTelemetry as an application of a client sets it up, with its own exporter."""
    provider = TracerProvider(resource=Resource.create({"service.name": "application"}))
    exporter = OTLPSpanExporter(watched.collector.endpoint, insecure=True)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=100))
    yield provider
    provider.shutdown()


@pytest.mark.parametrize("count", [20, 100])
async def test_concurrent_requests_are_one_trace_each_with_every_parent(
    watched: Watched, stub: RouterServiceStub, application: TracerProvider, count: int
) -> None:
    async with AsyncClient(watched.router.address, tracer=application.get_tracer("app")) as client:
        await asyncio.gather(
            *(client.generate([0, 1, index % 8], max_output_tokens=30, temperature=1.0) for index in range(count))
        )
    await asyncio.to_thread(application.force_flush)
    sink = watched.collector.sink
    wait_until(lambda: sum(span.kind == SERVER and span.name == GENERATE for span in sink.spans) == count, "every call")
    wait_until(
        lambda: sum(span.kind == CLIENT and span.name == GENERATE for span in sink.spans) == count, "every client"
    )
    wait_until(lambda: all(settled(spans, set()) for spans in sink.traces().values()), "every parent and every server")
    traces = sink.traces()
    assert len(traces) == count
    for spans in traces.values():
        [root] = [span for span in spans if not span.parent_id]
        assert (root.service, root.kind, root.name) == ("application", CLIENT, GENERATE)
        assert {span.service for span in spans} == {
            "application", "specmesh-router", "specmesh-draft", "specmesh-verifier",
        }  # fmt: skip
        [call] = named(spans, GENERATE, SERVER)
        steps = named(spans, names.STEP_SPAN)
        assert len(steps) == call.attributes[names.STEP_COUNT]
        assert sum(step.attributes[names.NUM_EMITTED] for step in steps) == 30
        for kind in (CLIENT, SERVER):
            assert len(named(spans, names.VERIFY_SPAN, kind)) == len(steps)
            assert len(named(spans, OPEN, kind)) == 1
        assert len(named(spans, names.DRAFT_SPAN, CLIENT)) == sum(
            step.attributes[names.BLOCK_LENGTH] > 0 for step in steps
        )
        assert all(not span.failed for span in spans)


async def test_spans_nest_as_the_work_does(watched: Watched, stub: RouterServiceStub) -> None:
    await generate(stub, request(max_output_tokens=12), metadata=SAMPLED)
    spans = spans_of(watched.collector.sink, TRACE)
    by_id = {span.span_id: span for span in spans}

    def chain(span: SpanSeen) -> list[tuple[str, int]]:
        above = by_id.get(span.parent_id)
        return [(span.name, span.kind), *(chain(above) if above else [])]

    call = [(GENERATE, SERVER)]
    step = [(names.STEP_SPAN, 1), *call]
    for forward in named(spans, names.FORWARD_SPAN):
        assert chain(forward) == [
            (names.FORWARD_SPAN, 1),
            (names.VERIFY_SPAN, SERVER),
            (names.VERIFY_SPAN, CLIENT),
            *step,
        ]
    for compute in named(spans, names.COMPUTE_SPAN):
        assert chain(compute) == [
            (names.COMPUTE_SPAN, 1),
            (names.DRAFT_SPAN, SERVER),
            (names.DRAFT_SPAN, CLIENT),
            *step,
        ]
    assert named(spans, names.KERNEL_SPAN)
    assert named(spans, names.QUEUE_SPAN)
    [open_server] = named(spans, OPEN, SERVER)
    assert chain(open_server) == [(OPEN, SERVER), (OPEN, CLIENT), *call]
    assert by_id[named(spans, GENERATE)[0].span_id].parent_id == CALLER
    for span in spans:
        above = by_id.get(span.parent_id)
        if above is not None:  # clocks of one machine: a millisecond covers what they are read apart
            assert span.start_ns >= above.start_ns - 1_000_000, chain(span)
            assert span.end_ns <= above.end_ns + 1_000_000, chain(span)


async def test_a_long_context_is_brought_to_a_draft_in_a_span_of_its_own(
    watched: Watched, stub: RouterServiceStub
) -> None:
    """Longer than what goes with an entry."""
    prompt = [index % 8 for index in range(INLINE_TOKENS + 100)]
    await generate(stub, request(prompt=prompt, max_output_tokens=12), metadata=SAMPLED)
    spans = spans_of(watched.collector.sink, TRACE)
    by_id = {span.span_id: span for span in spans}
    [client], [server] = (named(spans, "specmesh.v1.DraftService/Open", kind) for kind in (CLIENT, SERVER))
    assert (server.service, by_id[server.parent_id]) == ("specmesh-draft", client)
    wait = by_id[client.parent_id]
    assert (wait.name, wait.kind) == (names.DRAFT_SPAN, CLIENT)
    assert wait.start_ns <= client.start_ns <= client.end_ns <= wait.end_ns
    assert set(client.attributes) >= CLIENT_SIDE


async def test_the_parts_of_every_step_add_up_to_it(watched: Watched, stub: RouterServiceStub) -> None:
    generation = await generate(stub, request(max_output_tokens=200, output={"step_reports": True}), metadata=SAMPLED)
    spans = spans_of(watched.collector.sink, TRACE)
    steps = named(spans, names.STEP_SPAN)
    assert len(steps) >= 40
    for step, report in zip(steps, generation.steps, strict=False):
        parts = [step.attributes[names.PART_SECONDS + part] for part in PARTS]
        assert all(part >= 0 for part in parts)
        assert abs(sum(parts) - step.seconds) <= 0.02 * step.seconds
        assert abs(report.timing.total.ToNanoseconds() / 1e9 - step.seconds) <= 0.02 * step.seconds
        # What the verifier says of itself explains its part.
        [client] = [span for span in spans if span.parent_id == step.span_id and span.name == names.VERIFY_SPAN]
        [server] = [span for span in spans if span.parent_id == client.span_id]
        at_verifier = sum(step.attributes[names.PART_SECONDS + part] for part in ("queue", "forward", "verify"))
        assert at_verifier <= client.seconds * 1.02
        assert server.seconds <= client.seconds * 1.02


async def test_later_steps_are_one_span_with_sums(watched: Watched, stub: RouterServiceStub) -> None:
    message = request(max_output_tokens=100, arms=[], stop={"ignore_eos": True})
    await generate(stub, message, metadata=SAMPLED)
    spans = spans_of(watched.collector.sink, TRACE)
    assert len(named(spans, names.STEP_SPAN)) == names.MAX_STEP_SPANS == 64
    asked = [step for step in named(spans, names.STEP_SPAN) if not step.attributes[names.IN_RUN]]
    assert len(named(spans, names.VERIFY_SPAN, SERVER)) == len(asked) == 64 // SessionsConfig().max_run_tokens
    [rest] = named(spans, names.STEPS_SPAN)
    assert rest.attributes[names.STEP_COUNT] == 36
    assert rest.attributes[names.NUM_EMITTED] == 36
    parts = sum(rest.attributes[names.PART_SECONDS + part] for part in PARTS)
    assert 0 < parts <= rest.seconds * 1.02


async def test_cancelled_streams_end_every_span(watched: Watched, stub: RouterServiceStub) -> None:
    async def cancelled() -> None:
        call = stub.Generate(request(max_output_tokens=4000, arms=["near"]), metadata=SAMPLED, timeout=60)
        count = 0
        async for event in call:
            count += len(event.delta.token_ids)
            if count >= 3:
                break
        call.cancel()

    for _ in range(5):
        await asyncio.gather(*(cancelled() for _ in range(10)))
    spans = spans_of(watched.collector.sink, TRACE, count_of_calls=50)
    calls = named(spans, GENERATE)
    assert len(calls) == 50
    assert {call.attributes[names.RPC_STATUS] for call in calls} == {"CANCELLED"}
    assert '"level": "ERROR"' not in watched.router.log()
    assert not any(call.failed for call in calls), "to a server, a client that leaves is no error"
    assert all(span.end_ns >= span.start_ns > 0 for span in spans)
    open_steps = [step for step in named(spans, names.STEP_SPAN) if step.failed]
    assert {step.attributes[names.ERROR_TYPE] for step in open_steps} <= {"cancelled"}
    for step in open_steps:
        inside = [span for span in spans if span.parent_id == step.span_id]
        assert inside
        assert any(span.failed for span in inside)


async def test_a_deadline_ends_spans_with_its_name(watched: Watched, stub: RouterServiceStub) -> None:
    error = await refused(generate(stub, request(max_output_tokens=4000, arms=[]), metadata=SAMPLED, timeout=0.5))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    [call] = named(spans_of(watched.collector.sink, TRACE), GENERATE)
    assert call.attributes[names.RPC_STATUS] == "DEADLINE_EXCEEDED"
    assert call.failed


async def test_a_refused_request_has_its_status(watched: Watched, stub: RouterServiceStub) -> None:
    error = await refused(generate(stub, request(prompt=[], max_output_tokens=4), metadata=SAMPLED))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    [call] = spans_of(watched.collector.sink, TRACE)
    assert call.attributes[names.RPC_STATUS] == call.attributes[names.ERROR_TYPE] == "INVALID_ARGUMENT"
    assert not call.failed, "the client's fault, not the server's"


async def test_who_is_not_sampled_leaves_no_span(watched: Watched, stub: RouterServiceStub) -> None:
    await generate(stub, request(), metadata=(("traceparent", f"00-{'ab' * 16}-{CALLER}-00"),))
    await generate(stub, request())
    await generate(stub, request(), metadata=SAMPLED)  # arrives after anything that the others had left
    spans_of(watched.collector.sink, TRACE)
    assert set(watched.collector.sink.traces()) == {TRACE}


ALLOWED = {
    value for name, value in vars(names).items() if isinstance(value, str) and name.isupper() and "." in value
} | {names.PART_SECONDS + part for part in PARTS}
CLOSED_WORDS = re.compile(r"specmesh\.v1\.\w+/\w+|grpc|[A-Z_]+|[a-z_]+|near@[0-9a-f]{8}|[0-9a-f]{32}|target")


async def test_neither_texts_nor_token_ids_are_told(watched: Watched, stub: RouterServiceStub) -> None:
    """Ids are not among what may be told at all; strings come from closed sets of words."""
    secret = "Sesame-open-4711"
    bad = request(prompt=secret, max_output_tokens=4)
    await refused(generate(stub, bad, metadata=SAMPLED))
    await generate(stub, request(max_output_tokens=30), metadata=SAMPLED)
    spans = spans_of(watched.collector.sink, TRACE, count_of_calls=2)
    for span in spans:
        assert set(span.attributes) <= ALLOWED, span
        for value in span.attributes.values():
            for word in value if isinstance(value, list) else [value]:
                assert not isinstance(word, str) or CLOSED_WORDS.fullmatch(word), span
    assert secret not in watched.logs()
    assert "Sesame" not in str(spans)


async def test_logs_carry_the_trace(watched: Watched, stub: RouterServiceStub) -> None:
    await generate(stub, request(), metadata=SAMPLED)
    assert f'"trace_id": "{TRACE}"' in watched.router.log()


async def test_metrics_reach_the_collector_under_their_names(watched: Watched, stub: RouterServiceStub) -> None:
    await generate(stub, request(max_output_tokens=30), metadata=SAMPLED)
    metrics = watched.collector.sink.metrics
    known = {metric.name for metric in names.METRICS}
    # Those that only show when something has gone wrong have their series from the start.
    wait_until(lambda: known <= set(metrics), f"all metrics: {known - set(metrics)}")
    assert set(metrics) == known
    total = [
        point
        for point in metrics[names.STEP_DURATION.name].histogram.data_points
        if point.attributes[0].value.string_value == "total"
    ]
    wait_until(lambda: bool(total[0].count), "steps")
    assert {exemplar.trace_id.hex() for point in total for exemplar in point.exemplars} >= {TRACE}

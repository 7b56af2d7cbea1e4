"""Traces of calls all at once, of some that end well and of more whose clients leave, as a collector has them."""

import asyncio
import secrets
from collections.abc import Sequence

import pytest
from mesh_calls import generate, request
from telemetry_parts import SpanSeen, Watched, needs_rotel, wait_until

from specmesh.runtime.telemetry import names
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

pytestmark = [needs_rotel, pytest.mark.slow]

GENERATE = "specmesh.v1.RouterService/Generate"
CALLER = "b7ad6b7169203331"
FINISHED, CANCELLED = 20, 50
TOKENS = 40


def new_traces(number: int) -> list[str]:
    return [secrets.token_hex(16) for _ in range(number)]


def context_of(trace_id: str) -> tuple[tuple[str, str]]:
    return (("traceparent", f"00-{trace_id}-{CALLER}-01"),)


def whole(spans: Sequence[SpanSeen]) -> bool:
    """The call has ended, and every span's parent is there."""
    known = {span.span_id for span in spans} | {CALLER}
    return any(span.name == GENERATE for span in spans) and all(span.parent_id in known for span in spans)


async def test_traces_are_whole_and_apart_though_most_of_the_clients_leave(
    watched: Watched, stub: RouterServiceStub
) -> None:
    async def finish(trace_id: str) -> None:
        await generate(stub, request(max_output_tokens=TOKENS), metadata=context_of(trace_id))

    async def leave(trace_id: str) -> None:
        call = stub.Generate(request(max_output_tokens=4000), metadata=context_of(trace_id), timeout=60)
        async for event in call:
            if event.delta.token_ids:
                break
        call.cancel()

    finished, cancelled = new_traces(FINISHED), new_traces(CANCELLED)
    await asyncio.gather(*map(finish, finished), *map(leave, cancelled))
    sink = watched.collector.sink
    for trace_id in (*finished, *cancelled):
        wait_until(lambda trace_id=trace_id: whole(sink.traces().get(trace_id, ())), f"all of trace {trace_id}")  # type: ignore[misc]
    traces = sink.traces()
    assert set(traces) == {*finished, *cancelled}
    for trace_id, status in [*((each, "OK") for each in finished), *((each, "CANCELLED") for each in cancelled)]:
        spans = traces[trace_id]
        [call] = [span for span in spans if span.name == GENERATE]
        assert (call.parent_id, call.attributes[names.RPC_STATUS]) == (CALLER, status)
        assert all(span.end_ns >= span.start_ns > 0 for span in spans)
        if status == "OK":
            steps = [span for span in spans if span.name == names.STEP_SPAN]
            assert len(steps) == call.attributes[names.STEP_COUNT]
            assert sum(step.attributes[names.NUM_EMITTED] for step in steps) == TOKENS
            assert not any(span.failed for span in spans)

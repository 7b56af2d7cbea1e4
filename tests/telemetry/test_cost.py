"""What telemetry may cost a step, counted: calls that its functions get and make, which no busy machine changes.

`benchmarks/telemetry_cost.py` measures the time.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from mesh_calls import generate, request, router_at, wait_ready
from router_fakes import FakeDraft, FakeVerifier
from traced_router import DRAFT_INFO, INFO, SAMPLED, there_already, traced_router
from verifier_parts import COUNTING, Stepper, make_spec

from specmesh.draft import metrics as draft_metrics
from specmesh.draft.block import Ended
from specmesh.router import demand, metrics, telemetry, tracing, watching
from specmesh.runtime.telemetry import instruments
from specmesh.runtime.telemetry.instruments import AT_A_TIME, Registry
from specmesh.runtime.telemetry.names import MAX_STEP_SPANS
from specmesh.runtime.telemetry.otlp_messages import spans_request
from specmesh.runtime.telemetry.spans import Tracer
from specmesh.runtime.types import ContextSource, DraftEndReason
from specmesh.verifier import metrics as verifier_metrics
from specmesh.verifier.backend import Work
from specmesh.verifier.metrics import MeasuredBackend
from specmesh.verifier.target import TableTarget

MODULES = (demand, metrics, telemetry, tracing, watching, draft_metrics, verifier_metrics)
FILES = {module.__file__ for module in MODULES}
FOLDER = str(Path(instruments.__file__).parent)
MANY = 10 * AT_A_TIME
TOKENS_A_STEP = 5


@contextmanager
def calls_counted(*, everywhere: bool = False) -> Iterator[Counter[str]]:
    """Calls of telemetry's functions in this thread, and those that they make of built-in ones, by file.

    `everywhere`: of all functions.
    """
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event in ("call", "c_call") and (everywhere or name in FILES or name.startswith(FOLDER)):
            found[Path(name).stem] += 1

    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)


async def calls_of_a_step(*, watched: bool, steps: int = AT_A_TIME, metadata: Any = ()) -> dict[str, float]:
    """By file: what a request of three times as many steps takes more than one of `steps`, shared among them."""
    async with (
        traced_router(FakeDraft(DRAFT_INFO, there_already), FakeVerifier(INFO), watched=watched) as traced,
        router_at(traced.address) as stub,
    ):
        await wait_ready(stub, "good")
        seen, num_steps = [], []
        for count in (steps, steps, 3 * steps):  # series are made once
            message = request(max_output_tokens=count * TOKENS_A_STEP, output={"unary": True})
            with calls_counted() as found:
                generation = await generate(stub, message, metadata=metadata)
                if watched:
                    traced.registry.work_off()
            seen.append(found)
            assert generation.finished is not None
            num_steps.append(generation.finished.usage.step_count)
    more = seen[2]
    more.subtract(seen[1])
    return {name: count / (num_steps[2] - num_steps[1]) for name, count in more.items() if count}


async def test_without_telemetry_a_step_passes_through_a_handful_of_empty_functions() -> None:
    assert await calls_of_a_step(watched=False) == {"watching": 10}


async def test_a_step_that_is_not_traced_makes_no_span() -> None:
    calls = await calls_of_a_step(watched=True)
    assert set(calls) == {"watching", "telemetry", "metrics", "demand", "instruments"}
    assert sum(calls.values()) <= 20, calls


async def test_a_traced_step_costs_a_bounded_number_of_calls() -> None:
    calls = await calls_of_a_step(watched=True, steps=MAX_STEP_SPANS // 4, metadata=SAMPLED)
    assert "spans" in calls
    assert sum(calls.values()) <= 200, calls


def calls_of_each(do: Callable[[], object], registry: Registry) -> float:
    """Of many."""
    with calls_counted() as found:
        for _ in range(MANY):
            do()
        registry.work_off()
    return sum(found.values()) / MANY


def test_a_block_of_a_draft_costs_a_handful_of_calls() -> None:
    registry = Registry()
    watch = draft_metrics.BlockMetrics(registry)
    block = Ended(4, DraftEndReason.LENGTH, ContextSource.WARM, queue_ns=1_000, compute_ns=50_000, batch_size=1)
    assert calls_of_each(lambda: watch.ended(block), registry) <= 4


def test_a_tick_of_a_verifier_costs_a_handful_of_calls() -> None:
    engine = Stepper(TableTarget(np.asarray(COUNTING)))
    engine.open(make_spec([3]))
    [session] = engine.core.sessions.values()
    registry = Registry()
    backend = MeasuredBackend(engine.backend, registry)
    assert calls_of_each(lambda: backend.verify([Work(session, [3], start=0)]), registry) <= 7


def test_an_export_costs_its_spans_and_next_to_nothing_else() -> None:
    """Nothing is looked up for each, whatever else is called for it."""
    span = Tracer(lambda ended: None, 1.0).entry("call", None)
    assert span is not None
    spans_request([span], {"service.name": "specmesh"})  # what is looked up once
    with calls_counted(everywhere=True) as found:
        spans_request([span], {"service.name": "specmesh"})
    assert sum(found.values()) <= 40, found

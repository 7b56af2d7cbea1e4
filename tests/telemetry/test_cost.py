"""What telemetry may cost a step of a router, counted: calls of its functions, which no busy machine changes.

`benchmarks/telemetry_cost.py` measures the time.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from mesh_calls import generate, request, router_at, wait_ready
from router_fakes import FakeDraft, FakeVerifier
from traced_router import DRAFT_INFO, INFO, SAMPLED, there_already, traced_router

from specmesh.router import metrics, telemetry, tracing, watching
from specmesh.runtime.telemetry import instruments

FILES = {module.__file__ for module in (metrics, telemetry, tracing, watching)}
FOLDER = str(Path(instruments.__file__).parent)
STEPS, MORE_STEPS = 10, 30
TOKENS_A_STEP = 5


@contextmanager
def calls_counted() -> Iterator[Counter[str]]:
    """Calls of functions of telemetry in this thread, by file."""
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and (name in FILES or name.startswith(FOLDER)):
            found[Path(name).stem] += 1

    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)


async def calls_of_a_step(*, watched: bool, metadata: Any = ()) -> dict[str, float]:
    """By file: what a request takes for its later steps, shared among them."""
    async with (
        traced_router(FakeDraft(DRAFT_INFO, there_already), FakeVerifier(INFO), watched=watched) as traced,
        router_at(traced.address) as stub,
    ):
        await wait_ready(stub, "good")
        seen, num_steps = [], []
        for steps in (STEPS, STEPS, MORE_STEPS):  # series are made once
            message = request(max_output_tokens=steps * TOKENS_A_STEP, output={"unary": True})
            with calls_counted() as found:
                generation = await generate(stub, message, metadata=metadata)
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
    assert set(calls) == {"watching", "telemetry", "metrics", "instruments"}
    assert sum(calls.values()) <= 50, calls


async def test_a_traced_step_costs_a_bounded_number_of_calls() -> None:
    calls = await calls_of_a_step(watched=True, metadata=SAMPLED)
    assert "spans" in calls
    assert sum(calls.values()) <= 150, calls

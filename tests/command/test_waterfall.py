"""The waterfall of `specmesh generate --trace`: bars that add up, whatever the parts are."""

import io
import random
import re
from collections import Counter

from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from specmesh.command.waterfall import BAR_WIDTH, MAX_STEPS, PARTS, PREDICTED, bar, new_traceparent, waterfall
from specmesh.runtime.telemetry.spans import parse_traceparent
from specmesh.v1 import router_service_pb2 as pb


def timing(**ms: float) -> pb.StepTiming:
    durations = {part: Duration(nanos=round(value * 1e6)) for part, value in ms.items()}
    return pb.StepTiming(total=Duration(nanos=round(sum(ms.values()) * 1e6)), **durations)


def test_a_bar_is_as_long_as_its_step_and_shows_parts_by_their_share() -> None:
    text = bar(timing(draft=1.0, network=1.0, queue=0.0, forward=3.0, verify=0.5, router=0.5), longest=6.0).plain
    assert Counter(text) == {"d": 10, "n": 10, "f": 30, "v": 5, "r": 5}
    assert len(bar(timing(forward=3.0), longest=6.0).plain) == BAR_WIDTH // 2
    assert bar(timing(), longest=0.0).plain == ""


def test_rounding_never_makes_a_bar_longer_than_its_step() -> None:
    rng = random.Random(5)
    for _ in range(200):
        times = timing(**{part: rng.random() for part in PARTS})
        total = times.total.nanos / 1e6
        assert abs(len(bar(times, longest=6.0).plain) - total / 6.0 * BAR_WIDTH) <= 0.5 + 1e-3


def test_every_step_has_a_line_and_more_than_fit_are_counted() -> None:
    step = pb.StepReport(arm="code@12345678", drafted_count=4, accepted_count=3, timing=timing(forward=2.0, router=0.5))
    console = Console(file=io.StringIO(), width=140)
    context = new_traceparent()
    console.print(waterfall([step] * (MAX_STEPS + 3), context))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert len(re.findall(r"code@12345678 +3/4", said)) == MAX_STEPS
    assert "and 3 more steps" in said
    assert f"{2.5 * (MAX_STEPS - 1):.1f}" in said
    assert context.split("-")[1] in said


def test_the_trace_that_is_begun_is_to_be_sampled() -> None:
    context = parse_traceparent(new_traceparent())
    assert context is not None
    assert context.sampled
    assert new_traceparent() != new_traceparent()


def test_a_block_that_was_there_before_it_was_asked_for_is_marked_and_takes_no_time() -> None:
    times = timing(forward=2.0)
    steps = [pb.StepReport(arm="near@12", predicted=True, timing=times), pb.StepReport(arm="far@34", timing=times)]
    console = Console(file=io.StringIO(), width=140)
    console.print(waterfall(steps, new_traceparent()))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert f"near@12 {PREDICTED} " in said
    assert "far@34  " in said
    assert "drafted before it was asked for" in said
    assert "d" not in bar(times, 2.0).plain

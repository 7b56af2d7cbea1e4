import io

import pytest
from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from specmesh.client import Finished, Generation, Started
from specmesh.command.bench import Measured, make_report
from specmesh.command.demo import Demo, Run, overall_speed, show_results
from specmesh.command.report import PLAIN, arm_table, generation_json, step_json, totals_by_arm
from specmesh.command.views import PlainView, TerminalView
from specmesh.v1 import router_service_pb2 as pb


def ms(value: float) -> Duration:
    return Duration(nanos=round(value * 1e6))


def step(arm: str, drafted: int, accepted: int, total_ms: float) -> pb.StepReport:
    return pb.StepReport(
        arm=arm,
        drafted_count=drafted,
        accepted_count=accepted,
        emitted_count=accepted + 1,
        reward=accepted / drafted if drafted else None,
        fallback_reason=pb.FALLBACK_REASON_UNSPECIFIED if drafted else pb.FALLBACK_REASON_POLICY,
        timing=pb.StepTiming(total=ms(total_ms), draft=ms(1), forward=ms(total_ms - 2)),
    )


STEPS = [step("code@1", 4, 4, 30), step("code@1", 4, 1, 30), step("", 0, 0, 20)]


def generation(steps: list[pb.StepReport]) -> Generation:
    usage = pb.Usage(input_token_count=3, output_token_count=8, drafted_token_count=8, accepted_token_count=5)
    usage.pools.add(pool="code", device_time=ms(12))
    return Generation(
        text="eight",
        token_ids=list(range(8)),
        steps=steps,
        started=Started("id", "model", "print", 7, "COUPLED"),
        finished=Finished("STOP", "\n", usage),
    )


def test_a_step_is_told_in_the_words_of_the_mesh() -> None:
    told = step_json(STEPS[1])
    assert (told["arm"], told["drafted"], told["accepted"], told["emitted"], told["reward"]) == (
        "code@1",
        4,
        1,
        2,
        0.25,
    )
    assert told["fallback_reason"] is None
    assert told["ms"]["total"] == 30
    plain = step_json(STEPS[2])
    assert (plain["arm"], plain["reward"], plain["fallback_reason"]) == (None, None, "POLICY")


def test_a_generation_is_one_object_without_prefixes() -> None:
    told = generation_json(generation(STEPS))
    assert told["finish_reason"] == "STOP"
    assert told["stop_matched"] == "\n"
    assert told["rule"] == "COUPLED"
    assert told["usage"]["device_ms"] == {"code": 12}
    assert len(told["steps"]) == 3


def test_arms_are_summed_up_the_most_used_first() -> None:
    totals = totals_by_arm(STEPS)
    assert list(totals) == ["code@1", PLAIN]
    told = totals["code@1"].as_json()
    assert (told["steps"], told["drafted"], told["accepted"], told["emitted"]) == (2, 8, 5, 7)
    assert told["reward"] == 0.625
    assert told["tokens_per_second"] == pytest.approx(7 / 0.060)
    assert totals[PLAIN].as_json()["reward"] is None


def test_the_table_has_a_line_an_arm() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(arm_table(totals_by_arm(STEPS)))
    written = console.file.getvalue()
    assert "code@1" in written
    assert "62%" in written
    assert PLAIN in written


def test_the_first_step_waits_for_the_prompt_and_is_no_measure_of_speed() -> None:
    assert overall_speed([generation([step("a", 0, 0, 900), step("a", 4, 4, 50)])]) == pytest.approx(5 / 0.050)
    assert overall_speed([generation([])]) == 0


def test_the_demos_file_holds_every_prompt_and_the_totals() -> None:
    told = Demo([Run("prose", generation(STEPS), generation(STEPS[2:]))]).as_json()
    assert set(told) == {"prompts", "arms", "tokens_per_second"}
    assert told["prompts"]["prose"]["without_drafts"]["same_token_ids"] is True
    assert told["arms"]["code@1"]["steps"] == 2


def test_percentiles_are_by_nearest_rank_and_absent_without_requests() -> None:
    measured = Measured(first_token=[0.004, 0.001, 0.003, 0.002], tokens=8)
    told = make_report(measured, 2.0, 4, 1)
    assert told["ms_to_first_token"] == {"p50": 2.0, "p90": 4.0, "p99": 4.0}
    assert told["ms_per_request"] == {"p50": None, "p90": None, "p99": None}
    assert told["tokens_per_second"] == 4


@pytest.mark.parametrize("view_class", [TerminalView, PlainView])
@pytest.mark.parametrize("show_log", [True, False])
def test_a_start_is_shown_and_afterwards_warnings_at_least(view_class: type[PlainView], show_log: bool) -> None:
    console = Console(file=io.StringIO(), width=120)
    view = view_class(console, show_log=show_log)
    view.starting("draft code")
    view.line("draft code", "warning: rows depend [on] the batch")
    view.line("draft code", "rows are independent")
    view.ready("draft code", "127.0.0.1:1")
    view.close()
    view.line("draft code", "warning: the disk [is] full")
    view.line("draft code", "all is well")
    written = console.file.getvalue()
    assert "draft code" in written
    assert "127.0.0.1:1" in written
    assert "the disk [is] full" in written
    assert ("all is well" in written) is show_log
    assert "rows depend [on] the batch" in written
    assert ("rows are independent" in written) is show_log


@pytest.mark.parametrize("differs", [True, False])
def test_the_demo_says_which_texts_differ_without_drafts_and_why(differs: bool) -> None:
    plain = generation(STEPS)
    if differs:
        plain.token_ids[5] = 99
    console = Console(file=io.StringIO(), width=120)
    show_results(Demo([Run("prose", generation(STEPS), plain)]), console)
    written = " ".join(console.file.getvalue().split())
    assert ("from token 6" in written) is differs
    assert ("the same │" in written) is not differs
    assert ("bfloat16" in written) is differs

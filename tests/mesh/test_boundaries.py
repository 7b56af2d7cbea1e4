"""Penalties, biases and the ends of texts through the running mesh, against the text worked out by hand."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from law_literal import scores
from mesh_calls import Generation, generate, refused, request
from mesh_processes import Running

from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.types import Sampling
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

PROMPT = (3, 5)
GREEDY: dict[str, Any] = {"temperature": 0}
PENALTIES: list[dict[str, Any]] = [
    {"frequency_penalty": 0.5},
    {"presence_penalty": 1.5, "repetition_penalty": 1.3},
    {"frequency_penalty": -0.1, "logit_bias": {2: 1.5, 4: -2.0}},
]


def by_hand(mesh: Running, sampling: dict[str, Any], num_tokens: int) -> list[int]:
    """Greedy text under penalties, one token at a time; a tie would go to the lowest id."""
    fields = sampling | {"logit_bias": tuple(sampling.get("logit_bias", {}).items())}
    context = list(PROMPT)
    for _ in range(num_tokens):
        logits = mesh.tables.logits[context[-2], context[-1]].tolist()
        adjusted = scores(logits, Sampling(**fields), Counter(context))
        context.append(max(range(len(adjusted)), key=adjusted.__getitem__))
    return context[len(PROMPT) :]


@pytest.mark.parametrize("arms", [[], ["near"], ["far"], ["look"]])
@pytest.mark.parametrize("sampling", PENALTIES, ids=lambda value: "-".join(value))
async def test_penalties_count_prompt_output_and_draft_prefix(
    router: RouterServiceStub, mesh: Running, arms: list[str], sampling: dict[str, Any]
) -> None:
    """C12 through the mesh: the text is the plain one whatever was drafted, also when it is taken up in the middle."""
    expected = by_hand(mesh, GREEDY | sampling, 60)
    assert expected != by_hand(mesh, GREEDY, 60)
    for length in (2, 8):
        message = {"arms": arms, "block_length": length, "sampling": GREEDY | sampling}
        answer = await generate(router, request(PROMPT, 60, **message))
        assert answer.token_ids == expected
        rest = await generate(router, request(PROMPT, 60, continuation_token_ids=expected[:23], **message))
        assert rest.token_ids == expected[23:]
        if arms == ["near"]:
            assert answer.finished is not None
            assert answer.finished.usage.accepted_token_count > 0


def text_of(plain: Sequence[int], stop: int, max_tokens: int) -> tuple[list[int], int]:
    """The text up to its first boundary; a tie goes to the stop."""
    text = list(plain[:max_tokens])
    if stop in text:
        return text[: text.index(stop) + 1], pb.FINISH_REASON_STOP
    return text, pb.FINISH_REASON_LENGTH


@pytest.mark.parametrize("rule", ["BLOCK", "TOKEN", "COUPLED"])
@pytest.mark.parametrize("arms", [[], ["near"]])
async def test_a_boundary_cuts_tokens_logprobs_and_usage_alike(
    router: RouterServiceStub, mesh: Running, arms: list[str], rule: str
) -> None:
    """C9, C10, C13: every stop id at every length; a boundary inside an accepted block leaves nothing after it."""
    plain = await generate(router, request(PROMPT, 12, arms=[], sampling=GREEDY, output={"logprobs": 0}))
    cut_inside = 0
    for stop in range(mesh.tables.vocabulary_size):
        for max_tokens in (1, 3, 12):
            sampling = GREEDY | {"rule": f"VERIFICATION_RULE_{rule}"}
            answer = await generate(
                router,
                request(
                    PROMPT, max_tokens, arms=arms, block_length=8, sampling=sampling,
                    stop={"token_ids": [stop]}, output={"logprobs": 0, "step_reports": True},
                ),
            )  # fmt: skip
            text, reason = text_of(plain.token_ids, stop, max_tokens)
            assert answer.summary == (text, reason, len(PROMPT), len(text))
            assert answer.logprobs == plain.logprobs[: len(text)]
            assert_counted(answer, stop)
            last = answer.steps[-1]
            cut_inside += reason == pb.FINISH_REASON_STOP and last.emitted_count == last.accepted_count
    assert (cut_inside > 0) == bool(arms), "some stop must lie inside an accepted block"


def assert_counted(answer: Generation, stop: int) -> None:
    """Usage and reports hold what was emitted and nothing after it."""
    assert answer.finished is not None
    usage, steps = answer.finished.usage, answer.steps
    stopped = answer.finished.finish_reason == pb.FINISH_REASON_STOP
    assert answer.finished.stop_matched == (str(stop) if stopped else "")
    assert sum(step.emitted_count for step in steps) == len(answer.token_ids)
    assert usage.drafted_token_count == sum(step.drafted_count for step in steps)
    assert usage.accepted_token_count == sum(step.accepted_count for step in steps)
    for step in steps:
        assert step.accepted_count <= step.emitted_count <= step.accepted_count + 1
        assert step.HasField("reward") == (step.drafted_count > 0)
    if stopped and steps[-1].emitted_count == steps[-1].accepted_count:
        assert steps[-1].drafted_count == steps[-1].accepted_count, "what follows the stop is no rejection"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": [1] * 700_000}, "tokens.ids"),
    ({"continuation_token_ids": [1] * 21}, "continuation_token_ids"),
    ({"continuation_token_ids": [8]}, "continuation_token_ids[0]"),
    ({"max_output_tokens": 0}, "stop.max_output_tokens"),
    ({"max_output_tokens": 513}, "stop.max_output_tokens"),
    ({"stop": {"token_ids": [8]}}, "stop.token_ids[0]"),
    ({"sampling": {"logit_bias": {8: 1.0}}}, "sampling.logit_bias"),
    ({"sampling": {"logit_bias": {3: float("nan")}}}, "sampling.logit_bias"),
    ({"sampling": {"temperature": float("nan")}}, "sampling.temperature"),
    ({"sampling": {"temperature": float("inf")}}, "sampling.temperature"),
    ({"sampling": {"top_p": 1.5}}, "sampling.top_p"),
    ({"sampling": {"min_p": -0.1}}, "sampling.min_p"),
    ({"sampling": {"repetition_penalty": 0}}, "sampling.repetition_penalty"),
    ({"sampling": {"presence_penalty": float("inf")}}, "sampling.presence_penalty"),
    ({"sampling": {"seed": 1, "rule": "VERIFICATION_RULE_BLOCK"}}, "sampling.rule"),
    ({"output": {"logprobs": 21}}, "output.logprobs"),
    ({"arms": ["nobody"]}, "draft.arms[0]"),
]


@pytest.mark.parametrize(("fields", "field"), BAD, ids=[f"{field}-{index}" for index, (_, field) in enumerate(BAD)])
async def test_a_bad_value_is_named_within_a_second_and_the_next_request_works(
    router: RouterServiceStub, fields: dict[str, Any], field: str
) -> None:
    """C17, C21: 2 MB of ids, ids outside the vocabulary, numbers that are none."""
    started = time.monotonic()
    error = await refused(generate(router, request(**fields)))
    assert time.monotonic() - started < 1
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).field == field
    assert len((await generate(router, request())).token_ids) == 20


@pytest.mark.parametrize(
    ("message", "method"),
    [
        (pb.ListModelsRequest, "ListModels"),
        (pb.ListDraftsRequest, "ListDrafts"),
    ],
)
async def test_an_unknown_field_of_a_listing_is_refused(router: RouterServiceStub, message: Any, method: str) -> None:
    """C40: every request of the service, not Generate alone."""
    unknown = message.FromString(b"\x80\x04\x01")
    error = await refused(getattr(router, method)(unknown, timeout=5))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).reason == "UNKNOWN_FIELD"
    assert "64" in str(error.details())

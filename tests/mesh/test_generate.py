"""What clients get from a running mesh."""

import math
from typing import Any

import grpc
import pytest
from mesh_calls import Generation, at_most, generate, refused, request, router_at, wait_ready
from mesh_processes import Running, patient_router
from mesh_tables import softmax

from specmesh.runtime.status import from_rpc_error
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

ARMS: list[list[str] | None] = [None, [], ["near"], ["far"], ["look"], ["near", "far"]]
GREEDY = {"temperature": 0}


def greedy(mesh: Running, prompt: list[int], num_tokens: int) -> list[int]:
    """The text by hand."""
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(int(mesh.tables.logits[context[-2], context[-1]].argmax()))
    return context[len(prompt) :]


@pytest.mark.parametrize("arms", ARMS)
@pytest.mark.parametrize("block_length", [1, 4, 8])
async def test_greedy_ids_are_the_targets_own_with_any_draft(
    router: RouterServiceStub, mesh: Running, arms: list[str] | None, block_length: int
) -> None:
    """Gate 2: ids, finish reason and counts equal plain decoding."""
    answer = await generate(router, request((3, 5), 60, arms=arms, block_length=block_length, sampling=GREEDY))
    assert answer.summary == (greedy(mesh, [3, 5], 60), pb.FINISH_REASON_LENGTH, 2, 60)


async def test_the_stream_says_what_a_client_needs_to_resume(router: RouterServiceStub) -> None:
    answer = await generate(router, request(sampling={"seed": 9}, request_id="my.request-1"))
    assert answer.started is not None
    assert answer.started.request_id == "my.request-1"
    assert answer.started.seed == 9
    assert answer.started.rule == pb.VERIFICATION_RULE_COUPLED
    assert len(answer.started.model_fingerprint) == 64
    plain = await generate(router, request())
    assert plain.started is not None
    assert not plain.started.HasField("seed")
    assert plain.started.rule == pb.VERIFICATION_RULE_BLOCK


async def test_usage_and_reports_agree(router: RouterServiceStub) -> None:
    answer = await generate(router, request(max_output_tokens=80, arms=["near"], output={"step_reports": True}))
    assert answer.finished is not None
    usage, steps = answer.finished.usage, answer.steps
    assert usage.step_count == len(steps)
    assert usage.output_token_count == len(answer.token_ids) == sum(step.emitted_count for step in steps) == 80
    assert usage.drafted_token_count == sum(step.drafted_count for step in steps) > 0
    assert usage.accepted_token_count == sum(step.accepted_count for step in steps) > 0
    assert {pool.pool for pool in usage.pools} == {"near", "verifier"}
    for step in steps:
        assert step.arm.startswith("near@") or step.fallback_reason == pb.FALLBACK_REASON_POLICY
        assert step.HasField("reward") == (step.drafted_count > 0)
        parts = (getattr(step.timing, part).ToNanoseconds() for part in
                 ("draft", "network", "queue", "forward", "verify", "router"))  # fmt: skip
        assert sum(parts) == step.timing.total.ToNanoseconds() > 0


async def test_logprobs_are_of_the_target_whatever_drafted(router: RouterServiceStub, mesh: Running) -> None:
    """C13: the same values with block length 0 and 4."""
    message = {"sampling": {"temperature": 0.7, "seed": 5}, "output": {"logprobs": 3}}
    plain = await generate(router, request((0, 1), 30, arms=[], **message))
    drafted = await generate(router, request((0, 1), 30, arms=["near"], block_length=4, **message))
    assert plain.token_ids == drafted.token_ids
    assert plain.logprobs == drafted.logprobs
    context = [0, 1, *plain.token_ids]
    for index, logprob in enumerate(plain.logprobs):
        law = softmax(mesh.tables.logits[context[index], context[index + 1]] / 0.7)
        assert logprob == pytest.approx(math.log(law[context[index + 2]]), abs=1e-5)


async def test_one_token_asks_for_no_draft(router: RouterServiceStub) -> None:
    """C10: max_tokens 1."""
    answer = await generate(router, request(max_output_tokens=1, arms=["near"], output={"step_reports": True}))
    assert len(answer.token_ids) == 1
    assert answer.steps[0].arm == ""
    assert answer.finished is not None
    assert answer.finished.usage.drafted_token_count == 0


@pytest.mark.parametrize("arms", [[], ["near"]])
async def test_the_first_boundary_ends_the_text(router: RouterServiceStub, mesh: Running, arms: list[str]) -> None:
    """C9, C10: stop id and max_tokens inside an accepted block; the stop token counts, nothing after it does."""
    plain = greedy(mesh, [3, 5], 40)
    stop = plain[4]
    first = plain.index(stop)
    for max_tokens, count, reason in (
        (40, first + 1, pb.FINISH_REASON_STOP),
        (first + 1, first + 1, pb.FINISH_REASON_STOP),
        (max(first, 1), max(first, 1), pb.FINISH_REASON_LENGTH if first else pb.FINISH_REASON_STOP),
    ):
        message = request((3, 5), max_tokens, arms=arms, sampling=GREEDY, stop={"token_ids": [stop]})
        answer = await generate(router, message)
        assert answer.summary == (plain[:count], reason, 2, count)
        assert answer.finished is not None
        assert answer.finished.stop_matched == (str(stop) if reason == pb.FINISH_REASON_STOP else "")
        assert answer.finished.usage.accepted_token_count <= answer.finished.usage.drafted_token_count <= count


async def test_the_context_ends_a_text_that_asked_for_more(router: RouterServiceStub) -> None:
    """C21: 4 tokens of room, block length 8: 4 tokens."""
    answer = await generate(router, request([1] * 508, 100, arms=["near"]))
    assert len(answer.token_ids) == 4
    assert answer.finished is not None
    assert answer.finished.finish_reason == pb.FINISH_REASON_LENGTH


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"prompt": ()}, "tokens.ids", "INVALID_VALUE"),
        ({"prompt": [1] * 512}, "tokens.ids", "CONTEXT_TOO_LONG"),
        ({"prompt": [8]}, "tokens.ids[0]", "INVALID_VALUE"),
        ({"prompt": "x" * 2_000_000}, "text", "UNSUPPORTED_OPTION"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature", "INVALID_VALUE"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p", "INVALID_VALUE"),
        ({"sampling": {"seed": 1, "rule": "VERIFICATION_RULE_TOKEN"}}, "sampling.rule", "INVALID_VALUE"),
    ],
)
async def test_a_bad_request_is_refused_by_name_and_the_next_one_works(
    router: RouterServiceStub, fields: dict[str, object], field: str, reason: str
) -> None:
    """C17, C21: within a second, the field or the limit named; a good request after it works."""
    error = await refused(generate(router, request(**fields), timeout=1.0))  # type: ignore[arg-type]
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    told = from_rpc_error(error)
    assert (told.field, told.reason) == (field, reason)
    assert len((await generate(router, request())).token_ids) == 20


@pytest.mark.parametrize("sampling", [{"temperature": 1e-40}, {"top_k": 9_999_999}, {"seed": 0}, {"seed": 2**64 - 1}])
async def test_extreme_values_are_served(router: RouterServiceStub, mesh: Running, sampling: dict[str, float]) -> None:
    """C17: a tiny temperature is argmax; a huge top-k is off; the ends of the seeds' range are reproducible."""
    first = await generate(router, request((3, 5), sampling=sampling))
    if "temperature" in sampling:
        assert first.token_ids == greedy(mesh, [3, 5], 20)
    if "seed" in sampling:
        assert (await generate(router, request((3, 5), sampling=sampling))).token_ids == first.token_ids


async def test_an_unknown_field_is_refused_by_its_number(router: RouterServiceStub) -> None:
    """C40."""
    message = request()
    message.MergeFromString(b"\x80\x04\x01")
    error = await refused(generate(router, message))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).reason == "UNKNOWN_FIELD"
    assert "64" in str(error.details())


async def test_temperature_zero_is_not_temperature_absent(router: RouterServiceStub, mesh: Running) -> None:
    """C40: absent is 1, zero is greedy."""
    zero = await generate(router, request((3, 5), sampling={"temperature": 0, "seed": 3}))
    absent = await generate(router, request((3, 5), sampling={"seed": 3}))
    one = await generate(router, request((3, 5), sampling={"temperature": 1, "seed": 3}))
    assert zero.token_ids == greedy(mesh, [3, 5], 20)
    assert absent.token_ids == one.token_ids != zero.token_ids


async def test_a_deadline_is_required(router: RouterServiceStub) -> None:
    error = await refused(generate(router, request(), timeout=None))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).field == "deadline"


async def test_a_deadline_that_passes_ends_the_call(router: RouterServiceStub) -> None:
    error = await refused(generate(router, request(max_output_tokens=500), timeout=0.02))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_continuation_goes_on_where_the_client_was(router: RouterServiceStub) -> None:
    """C41: under COUPLED the same text, whatever was cut where."""
    whole = await generate(router, request(max_output_tokens=40, arms=["near"], sampling={"seed": 21}))
    for cut in (1, 7, 39, 40):
        rest = await generate(
            router,
            request(
                max_output_tokens=40, arms=["far"], sampling={"seed": 21}, continuation_token_ids=whole.token_ids[:cut]
            ),
        )
        assert whole.token_ids[:cut] + rest.token_ids == whole.token_ids
        assert rest.finished is not None
        assert rest.finished.finish_reason == pb.FINISH_REASON_LENGTH


async def test_many_sessions_share_forward_passes_and_keep_apart(router: RouterServiceStub) -> None:
    """C26: concurrent execution equals serial execution."""
    messages = [
        request((seed % 8, 1), 40, arms=[["near"], ["far"], ["look"], []][seed % 4], sampling={"seed": seed})
        for seed in range(24)
    ]
    serial: list[Generation] = [await generate(router, message) for message in messages]
    together = await at_most(24, [generate(router, message) for message in messages])
    assert [each.summary for each in together] == [each.summary for each in serial]


async def test_models_and_arms_are_listed(router: RouterServiceStub) -> None:
    (model,) = (await router.ListModels(pb.ListModelsRequest(), timeout=5)).models
    assert (model.name, model.max_context_tokens, model.vocabulary_size) == ("target", 512, 8)
    assert "sampling.seed" in model.features
    assert "text" not in model.features
    assert len((await generate(router, request(model="target"))).token_ids) == 20
    error = await refused(generate(router, request(model="other")))
    assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_sessions_that_are_held_out_get_no_draft_unless_they_ask_for_one(mesh: Running) -> None:
    """Their text is the same; only what the others gain is known by them."""
    pools = mesh.pools("near")
    with patient_router(mesh.folder, mesh.verifier, pools, sessions__hold_out=1) as router:
        async with router_at(router.address) as stub:
            await wait_ready(stub, "near")
            fields: dict[str, Any] = {"sampling": {"seed": 3}, "output": {"step_reports": True}}
            held = await generate(stub, request(**fields))
            asked = await generate(stub, request(arms=["near"], **fields))
            assert {step.fallback_reason for step in held.steps} == {pb.FALLBACK_REASON_POLICY}
            assert {step.drafted_count for step in held.steps} == {0}
            assert any(step.accepted_count for step in asked.steps)
            assert held.token_ids == asked.token_ids

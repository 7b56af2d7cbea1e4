"""Requests: every option reaches its field, and what the wire cannot carry is refused by name before sending."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmesh._client_request import FIELD_PATHS, build_request
from specmesh.client import Client, InvalidRequest, Options
from specmesh.v1 import router_service_pb2 as pb


def test_every_option_reaches_its_field() -> None:
    request = build_request(
        "text",
        Options(
            max_output_tokens=9, model="m", request_id="r", temperature=0.0, top_p=0.5, top_k=3, min_p=0.25,
            repetition_penalty=1.5, presence_penalty=-0.5, frequency_penalty=0.5, logit_bias={7: -1.5},
            seed=2**64 - 1, rule="COUPLED", stop=["a", "b"], stop_token_ids=[4], ignore_eos=True, draft_mode="ONLY",
            arms=["code"], max_block_length=0, logprobs=0, min_chunk_interval=0.25, unary=True, step_reports=True,
            priority=-3, workload="code", continuation_token_ids=[1, 2],
        ),
    )  # fmt: skip
    expected = pb.GenerateRequest(
        text="text", model="m", request_id="r", priority=-3, workload="code", continuation_token_ids=[1, 2],
        sampling=pb.SamplingParams(
            temperature=0, top_p=0.5, top_k=3, min_p=0.25, repetition_penalty=1.5, presence_penalty=-0.5,
            frequency_penalty=0.5, logit_bias={7: -1.5}, seed=2**64 - 1, rule=pb.VERIFICATION_RULE_COUPLED,
        ),
        stop=pb.StopConditions(max_output_tokens=9, strings=["a", "b"], token_ids=[4], ignore_eos=True),
        draft=pb.DraftOptions(mode=pb.DRAFT_MODE_ONLY, arms=["code"], max_block_length=0),
        output=pb.OutputOptions(logprobs=0, min_chunk_interval={"nanos": 250_000_000}, unary=True, step_reports=True),
    )  # fmt: skip
    assert request == expected
    assert request.sampling.HasField("temperature")
    assert request.draft.HasField("max_block_length")


def test_every_field_of_the_request_has_an_option() -> None:
    paths = {FIELD_PATHS.get(name, name) for name in Options.__annotations__}
    fields = {
        f"{field.name}.{inner.name}" if field.name in ("sampling", "stop", "draft", "output") else field.name
        for field in pb.GenerateRequest.DESCRIPTOR.fields
        for inner in (field.message_type.fields if field.message_type else [field])
    }
    assert paths == fields - {"text", "tokens", "chat"}


def test_absent_options_are_absent_fields() -> None:
    request = build_request([5, 6], {"max_output_tokens": 1})
    assert request == pb.GenerateRequest(tokens=pb.TokenIds(ids=[5, 6]), stop=pb.StopConditions(max_output_tokens=1))


def test_messages_are_a_chat() -> None:
    request = build_request([("system", "brief"), ("user", "hi")], {"max_output_tokens": 1})
    assert [(message.role, message.content) for message in request.chat.messages] == [
        ("system", "brief"),
        ("user", "hi"),
    ]


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("top_k", -1, "sampling.top_k"),
        ("top_k", 2**32, "sampling.top_k"),
        ("top_k", 1.5, "sampling.top_k"),
        ("seed", -1, "sampling.seed"),
        ("seed", 2**64, "sampling.seed"),
        ("temperature", float("nan"), "sampling.temperature"),
        ("temperature", float("inf"), "sampling.temperature"),
        ("temperature", 1e39, "sampling.temperature"),
        ("temperature", "hot", "sampling.temperature"),
        ("presence_penalty", float("-inf"), "sampling.presence_penalty"),
        ("logit_bias", {-1: 1.0}, "sampling.logit_bias"),
        ("logit_bias", {1: float("nan")}, "sampling.logit_bias"),
        ("rule", "BLOCKS", "sampling.rule"),
        ("rule", 1, "sampling.rule"),
        ("model", b"m", "model"),
        ("stop_token_ids", b"ab", "stop.token_ids"),
        ("stop_token_ids", bytearray(b"ab"), "stop.token_ids"),
        ("stop_token_ids", 5, "stop.token_ids"),
        ("continuation_token_ids", b"ab", "continuation_token_ids"),
        ("max_output_tokens", -1, "stop.max_output_tokens"),
        ("stop", "END", "stop.strings"),
        ("stop", ["\ud800"], "stop.strings"),
        ("stop_token_ids", [-1], "stop.token_ids"),
        ("draft_mode", "SOMETIMES", "draft.mode"),
        ("max_block_length", -1, "draft.max_block_length"),
        ("logprobs", -1, "output.logprobs"),
        ("min_chunk_interval", float("nan"), "output.min_chunk_interval"),
        ("priority", 2**31, "priority"),
        ("model", 5, "model"),
        ("continuation_token_ids", [2**32], "continuation_token_ids"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_by_name(option: str, value: object, field: str) -> None:
    """C17: nothing is sent (there is no server), and the field is named."""
    options: Any = {"max_output_tokens": 1, option: value}
    with Client("localhost:1") as client, pytest.raises(InvalidRequest) as refusal:
        client.stream("x", **options)
    assert (refusal.value.field, refusal.value.reason) == (field, "INVALID_VALUE")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("top_k", -1, "must be a whole number from 0 to 4294967295"),
        ("seed", 2**64, "must be a whole number from 0 to 18446744073709551615"),
        ("priority", 2**31, "must be a whole number from -2147483648 to 2147483647"),
        ("temperature", "hot", "must be a finite number that float32 holds"),
        ("temperature", 1e39, "must be a finite number that float32 holds: at most about 3.4e38"),
        ("logit_bias", {1: 1e39}, "must be a finite number that float32 holds: at most about 3.4e38"),
        ("rule", "blocks", "must be one of BLOCK, TOKEN, COUPLED"),
        ("stop_token_ids", [-1], "must be a list, each a whole number from 0 to 4294967295"),
        ("stop", "END", "must be a list, each a text of valid Unicode"),
        ("logit_bias", {-1: 1.0}, "must be a mapping of token ids, whole numbers from 0 to 4294967295, to numbers"),
        ("min_chunk_interval", "soon", "must be a number of seconds"),
    ],
)
def test_a_refusal_says_what_the_field_takes(option: str, value: object, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        build_request("x", {"max_output_tokens": 1, option: value})
    assert refused.value.message == f"{refused.value.field}: {words}"


TEXTS = {"model", "request_id", "workload"}
WORDS = {"rule", "draft_mode"}
FLAGS = {"ignore_eos", "unary", "step_reports"}
LISTS = {"stop", "stop_token_ids", "arms", "continuation_token_ids"}
NUMBERS = Options.__annotations__.keys() - TEXTS - WORDS - FLAGS - LISTS - {"logit_bias"}


def field_refused(options: dict[str, Any]) -> str:
    """The field that is named, and that the message begins with."""
    with pytest.raises(InvalidRequest) as refused:
        build_request("x", {"max_output_tokens": 1} | options)
    assert refused.value.message.startswith(f"{refused.value.field}: ")
    return refused.value.field


@pytest.mark.parametrize("name", sorted(NUMBERS))
@pytest.mark.parametrize("value", [True, False])
def test_true_and_false_are_no_numbers(name: str, value: bool) -> None:
    assert field_refused({name: value}) == FIELD_PATHS.get(name, name)


@pytest.mark.parametrize("name", sorted(FLAGS))
@pytest.mark.parametrize("value", [0, 1, "true"])
def test_numbers_and_words_are_not_true_and_false(name: str, value: object) -> None:
    assert field_refused({name: value}) == FIELD_PATHS.get(name, name)


@pytest.mark.parametrize(
    "options", [{"stop_token_ids": [3, True]}, {"logit_bias": {1: True}}, {"logit_bias": {True: 1.0}}]
)
def test_true_and_false_are_no_numbers_in_lists_and_mappings_either(options: dict[str, Any]) -> None:
    [name] = options
    assert field_refused(options) == FIELD_PATHS[name]


@pytest.mark.parametrize("name", sorted(Options.__annotations__))
def test_none_is_refused_and_says_that_the_option_is_left_out_for_its_default(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        build_request("x", {"max_output_tokens": 1, name: None})
    path = FIELD_PATHS.get(name, name)
    assert refused.value.field == path
    expected = "is required" if name == "max_output_tokens" else "got None; leave the option out for its default"
    assert expected in refused.value.message


@pytest.mark.parametrize("integer", [np.int64, np.uint32])
def test_numbers_of_numpy_are_numbers(integer: Any) -> None:
    request = build_request([integer(3), integer(4)], {"max_output_tokens": integer(2), "stop_token_ids": [integer(5)]})
    assert (list(request.tokens.ids), request.stop.max_output_tokens, list(request.stop.token_ids)) == ([3, 4], 2, [5])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls": True}, "tls: must be specmesh.client.Tls(...)"),
        ({"plaintext_token": "yes"}, "plaintext_token: must be True or False"),
        ({"plaintext_token": None}, "plaintext_token: must be True or False"),
        ({"tracer": 5}, "tracer: must be an OpenTelemetry Tracer, or a W3C traceparent"),
        ({"max_request_bytes": True}, "max_request_bytes: must be a whole number from 1 to 1073741823"),
        ({"max_request_bytes": 1 << 30}, "max_request_bytes: must be a whole number from 1 to 1073741823"),
        ({"max_request_bytes": 0}, "max_request_bytes: must be a whole number from 1 to 1073741823"),
        ({"timeout": None}, "timeout: must be a positive number of seconds, at most 315360000 (ten years)"),
    ],
)
def test_what_a_client_cannot_be_given_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Client("localhost:1", **options)
    assert refused.value.message == words


def test_the_largest_bound_of_a_request_makes_a_channel() -> None:
    with Client("localhost:1", max_request_bytes=(1 << 30) - 1) as client:
        assert client.stream("x", max_output_tokens=1)


def test_a_request_above_the_bound_is_refused_before_it_is_sent() -> None:
    with Client("localhost:1") as client, pytest.raises(InvalidRequest) as refused:
        client.stream("x" * (4 << 20), max_output_tokens=1)
    assert refused.value.field == "request"


@pytest.mark.parametrize("resumes", [None, True, -1, 1.5, "3"])
def test_a_number_of_resumes_that_is_none_is_refused_by_name(resumes: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Client("localhost:1", resumes=resumes)
    assert refused.value.message == "resumes: must be a whole number, 0 or more"


@pytest.mark.parametrize("target", ["", None, 5, "http://localhost:50050", "https://router.example:443"])
def test_a_target_that_no_channel_could_reach_is_refused_by_name(target: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Client(target)
    assert refused.value.field == "target"
    assert "HOST:PORT" in refused.value.message


@pytest.mark.parametrize("token", ["", "  ", b"abc", "naïve\n", 5])
def test_a_token_that_no_header_can_carry_is_refused_by_name_and_not_shown(token: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Client("localhost:1", token=token, plaintext_token=True)
    assert refused.value.message == "token: must be a text of visible ASCII characters, or a function that gives one"


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ([], "input"),
        ([3, -1], "tokens.ids"),
        ([("user", "hi"), ("user", 5)], "chat.messages[1]"),
        ([("user",)], "chat.messages[0]"),
        ([("user", b"hi")], "chat.messages[0]"),
        (["ab", "cd"], "chat.messages[0]"),
        (("user", "hi"), "chat.messages[0]"),
        ([{"role": "user"}], "chat.messages[0]"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": "hi", "name": "y"}], "chat.messages[1]"),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "chat.messages[0]"),
        ([{1: 2, 3: 4}], "chat.messages[0]"),
        (b"abc", "input"),
        (bytearray(b"abc"), "input"),
        (memoryview(b"abc"), "input"),
        (5, "input"),
        (None, "input"),
        ((token for token in (1, 2)), "input"),
        ({"role": "user", "content": "hi"}, "input"),
        ([1.5, 2], "chat.messages[0]"),
        ("\ud800", "text"),
    ],
)
def test_a_prompt_that_cannot_be_sent_is_refused_without_quoting_it(prompt: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        build_request(prompt, {"max_output_tokens": 1})
    assert refusal.value.field == field
    assert "hi" not in refusal.value.message.split()


def test_messages_may_be_mappings_of_a_role_and_a_content() -> None:
    messages = [{"role": "system", "content": "brief"}, {"content": "hi", "role": "user"}]
    pairs = [("system", "brief"), ("user", "hi")]
    assert build_request(messages, {"max_output_tokens": 1}) == build_request(pairs, {"max_output_tokens": 1})


def test_the_names_of_rules_and_modes_are_taken_in_any_case() -> None:
    request = build_request("x", {"max_output_tokens": 1, "rule": "block", "draft_mode": "Off"})
    assert request.sampling.rule == pb.VERIFICATION_RULE_BLOCK
    assert request.draft.mode == pb.DRAFT_MODE_OFF


@pytest.mark.parametrize("timeout", ["5", -1, 0, float("nan"), float("inf"), 1e300, 4e8, True])
def test_a_timeout_that_is_none_is_refused_by_name(timeout: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Client("localhost:1", timeout=timeout)
    assert refused.value.field == "timeout"
    assert refused.value.message == "timeout: must be a positive number of seconds, at most 315360000 (ten years)"
    with Client("localhost:1") as client, pytest.raises(InvalidRequest, match="timeout: must be"):
        client.stream("x", max_output_tokens=1, timeout=timeout)


def test_max_output_tokens_has_no_silent_default() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        build_request("x", {})
    assert refusal.value.field == "stop.max_output_tokens"


def test_an_option_that_there_is_not_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        build_request("x", {"max_output_tokens": 1, "temprature": 1.0})
    with pytest.raises(TypeError, match="retries"):
        Client("localhost:1", retries=2)  # type: ignore[call-arg]


def test_the_client_imports_nothing_but_grpc_and_protobuf() -> None:
    program = "import sys, specmesh.client; print(*sorted(name for name in sys.modules if name.startswith('specmesh')))"
    command = [
        sys.executable,
        "-c",
        program + "; assert not {'torch', 'numpy', 'pydantic', 'tokenizers'} & set(sys.modules)",
    ]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    allowed = {"specmesh", "specmesh.client", "specmesh.v1"}
    assert all(
        name in allowed or name.startswith(("specmesh._client_", "specmesh.v1.router_service_pb2")) for name in loaded
    ), loaded


def test_no_file_of_the_client_is_long() -> None:
    folder = Path(sys.modules["specmesh.client"].__file__ or "").parent
    for path in [folder / "client.py", *folder.glob("_client_*.py")]:
        assert len(path.read_text().splitlines()) <= 300, path.name

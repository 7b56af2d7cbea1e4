"""What `specmesh generate` can ask for, against the public API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf.descriptor import Descriptor

from specmesh._client_request import FIELD_PATHS, Options
from specmesh.cli import generate, main
from specmesh.command.generate_options import request_options
from specmesh.v1 import router_service_pb2 as pb

BY_ANOTHER_NAME = {
    "text": "prompt",
    "tokens.ids": "tokens",
    "chat.messages": "chat",
    "draft.mode": "drafts",
    "draft.arms": "drafts",
    "output.step_reports": "steps",
}
"""Fields whose flag is not called as the client's option is."""


def fields(message: Descriptor, path: str = "") -> Iterator[str]:
    """Paths of all fields that hold a value, lists and maps included."""
    for field in message.fields:
        below = field.message_type
        plain = below is None or field.is_repeated or below.full_name.startswith("google.protobuf.")
        if plain:
            yield path + field.name
        else:
            yield from fields(below, f"{path}{field.name}.")


def test_every_field_of_the_public_api_has_a_flag() -> None:
    option_of = {FIELD_PATHS.get(name, name): name for name in Options.__annotations__}
    flags = {parameter.name for parameter in generate.params}
    called = {path: BY_ANOTHER_NAME.get(path) or option_of.get(path) for path in fields(pb.GenerateRequest.DESCRIPTOR)}
    assert {path: name for path, name in called.items() if name not in flags} == {}


def given(*arguments: str) -> Any:
    """The client's options of a command line."""
    with generate.make_context("generate", ["x", *arguments]) as context:
        names = Options.__annotations__.keys() | {"drafts", "steps"}
        return request_options({name: value for name, value in context.params.items() if name in names})


def test_flags_become_the_clients_options() -> None:
    options = given(
        "--stop-token-ids", "3,4", "--logit-bias", "5=1.5", "--logit-bias", "6=-2,7=0.5", "--priority", "-3",
        "--min-chunk-interval", "0.5", "--unary", "--continuation-token-ids", "1,2", "--drafts", "a,b",
    )  # fmt: skip
    assert options == {
        "max_output_tokens": 128, "stop_token_ids": [3, 4], "logit_bias": {5: 1.5, 6: -2.0, 7: 0.5}, "priority": -3,
        "min_chunk_interval": 0.5, "unary": True, "continuation_token_ids": [1, 2], "draft_mode": "ONLY",
        "arms": ["a", "b"], "step_reports": True,
    }  # fmt: skip


def test_what_is_not_given_is_left_to_the_router() -> None:
    assert given() == {"max_output_tokens": 128, "draft_mode": "AUTO", "step_reports": True}
    assert given("--temperature", "0", "--priority", "0")["temperature"] == 0
    assert given("--seed", "0")["seed"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--logit-bias", "5"), "--logit-bias: expected ID=BIAS, such as 42=-1.5."),
        (("--logit-bias", "a=1"), "--logit-bias: expected ID=BIAS, such as 42=-1.5."),
        (("--logit-bias", "1=2,1=3"), "--logit-bias: token id 1 is given twice."),
        (("--stop-token-ids", ""), "--stop-token-ids: expected token ids separated by commas."),
        (("--continuation-token-ids", ""), "--continuation-token-ids: expected token ids separated by commas."),
        (("--logit-bias", ""), "--logit-bias: expected ID=BIAS, such as 42=-1.5."),
        (("--stop-token-ids", "1;2"), "--stop-token-ids: expected token ids separated by commas."),
        (("--continuation-token-ids", "x"), "--continuation-token-ids: expected token ids separated by commas."),
    ],
)
def test_a_list_that_is_none_is_a_usage_error(arguments: tuple[str, ...], words: str) -> None:
    said = CliRunner().invoke(main, ["generate", "x", *arguments], env={"COLUMNS": "200"})
    assert said.exit_code == 2
    assert words in said.stderr
    assert said.stdout == ""
    told = CliRunner().invoke(main, ["generate", "x", "--json", *arguments], env={"COLUMNS": "200"})
    assert told.exit_code == 2
    error = json.loads(told.stdout)["error"]
    assert (error["code"], error["message"]) == ("INVALID_ARGUMENT", words)

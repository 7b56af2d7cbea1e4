import tomllib

import pytest

from specmesh.command.demo_assets import demo_mesh
from specmesh.command.mesh_config import DraftProcess, MeshConfig, flags, mesh_toml, toml_value
from specmesh.command.processes import readable
from specmesh.runtime.config import ConfigError


@pytest.mark.parametrize(
    "value",
    [True, 3, 0.25, "plain", 'quote " back \\ slash', "naïve 🙂", ["a", 1], {"k": [1], "a.b": {"c": "d"}}, "", []],
)
def test_every_value_survives_the_way_to_a_service(value: object) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


def test_a_value_that_toml_cannot_say_is_refused() -> None:
    with pytest.raises(ConfigError):
        toml_value(None)


def test_a_mesh_is_written_as_a_file_that_says_the_same() -> None:
    drafts = [
        {"pool": "code", "kind": "hf", "drafter": {"source": "distilled:code", "threads": 1}},
        {"pool": "other", "trust": "untrusted", "kind": "lookup"},
    ]
    router = {"sessions": {"hold_out": 0}, "server": {"port": 7, "allow": {"specmesh.v1.RouterService/*": ["a.b"]}}}
    config = MeshConfig.model_validate(
        {"verifier": {"model": "x", "dtype": "float32"}, "drafts": drafts, "router": router}
    )
    for mesh in (config, MeshConfig(), demo_mesh()):
        assert MeshConfig.model_validate(tomllib.loads(mesh_toml(mesh))) == mesh


def test_sections_become_dotted_keys() -> None:
    assert flags({"model": "demo", "server": {"port": 0}}) == ["--set", 'model="demo"', "--set", "server.port=0"]


def test_a_drafts_own_keys_are_kept_apart_from_its_pools() -> None:
    draft = DraftProcess.model_validate({"pool": "code", "trust": "untrusted", "kind": "hf", "drafter": {"model": "x"}})
    assert draft.settings == {"kind": "hf", "drafter": {"model": "x"}}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"level": "INFO", "message": "loading"}', "loading"),
        ('{"level": "WARNING", "message": "slow", "error": "m.E"}', "warning: slow (m.E)"),
        (
            '{"level": "WARNING", "message": "draft lost", "pool": "code", "reason": "gone", "trace_id": "x"}',
            "warning: draft lost (code, gone)",
        ),
        (
            '{"level": "INFO", "message": "generated", "finish_reason": "LENGTH", "rule": "BLOCK", "num_input": 3, '
            '"num_output": 24, "num_drafted": 30, "request_id": "r-1", "trace_id": "x"}',
            "generated (request r-1, 24 tokens, LENGTH)",
        ),
        (
            '{"level": "INFO", "message": "generated", "finish_reason": "", "num_output": 0, "request_id": "r-1"}',
            "generated (request r-1, 0 tokens)",
        ),
        ('{"level": "INFO", "message": "metrics for Prometheus", "port": 9464}', "metrics for Prometheus (port 9464)"),
        ("Traceback", "Traceback"),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_log_lines_are_shown_for_people(line: str, words: str) -> None:
    assert readable(line) == words

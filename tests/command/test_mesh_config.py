import tomllib

import pytest

from specmesh.command.mesh_config import DEFAULT_PORT, DraftProcess, MeshConfig, flags, toml_value
from specmesh.command.processes import readable
from specmesh.command.up import with_port
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


def test_sections_become_dotted_keys() -> None:
    assert flags({"model": "demo", "server": {"port": 0}}) == ["--set", 'model="demo"', "--set", "server.port=0"]


def test_a_drafts_own_keys_are_kept_apart_from_its_pools() -> None:
    draft = DraftProcess.model_validate({"pool": "code", "trust": "untrusted", "kind": "hf", "drafter": {"model": "x"}})
    assert draft.settings == {"kind": "hf", "drafter": {"model": "x"}}


def test_the_port_is_as_given_then_as_configured_then_the_default() -> None:
    configured = MeshConfig(router={"server": {"port": 7, "reflection": True}})
    assert with_port(configured, 9).router["server"] == {"port": 9, "reflection": True}
    assert with_port(configured, None).router["server"]["port"] == 7
    assert with_port(MeshConfig(), None).router["server"]["port"] == DEFAULT_PORT


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"level": "INFO", "message": "loading"}', "loading"),
        ('{"level": "WARNING", "message": "slow", "error": "m.E"}', "warning: slow (m.E)"),
        (
            '{"level": "WARNING", "message": "draft lost", "pool": "code", "reason": "gone", "trace_id": "x"}',
            "warning: draft lost (code, gone)",
        ),
        ("Traceback", "Traceback"),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_log_lines_are_shown_for_people(line: str, words: str) -> None:
    assert readable(line) == words

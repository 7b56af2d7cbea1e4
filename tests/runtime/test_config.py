from pathlib import Path

import pytest

from specmesh.runtime.config import ConfigError, ConfigModel, ServerConfig, load_config


class Pool(ConfigModel):
    name: str
    addresses: tuple[str, ...]


class Example(ConfigModel):
    title: str = "none"
    ratio: float = 0.5
    server: ServerConfig = ServerConfig()
    pools: tuple[Pool, ...] = ()


def load(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **overrides: str) -> Example:
    path = tmp_path / "config.toml"
    path.write_text(text)
    flags = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_config(Example, path=path, environ=environ or {}, overrides=flags, prefix="SPECMESH_EXAMPLE")


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    text = 'title = "file"\nratio = 0.1\n[server]\nport = 1\nhost = "a"\n'
    environ = {"SPECMESH_EXAMPLE__SERVER__PORT": "2", "SPECMESH_EXAMPLE__RATIO": "0.2"}
    config = load(tmp_path, text, environ, server__port="3")
    assert (config.title, config.ratio, config.server.port, config.server.host) == ("file", 0.2, 3, "a")


def test_lists_and_tables_are_given_as_toml(tmp_path: Path) -> None:
    environ = {"SPECMESH_EXAMPLE__POOLS": '[{name = "code", addresses = ["h:1", "h:2"]}]'}
    assert load(tmp_path, "", environ).pools == (Pool(name="code", addresses=("h:1", "h:2")),)


def test_text_that_looks_like_a_number_stays_text_where_text_is_wanted(tmp_path: Path) -> None:
    assert load(tmp_path, title="007").title == "007"


@pytest.mark.parametrize(
    ("text", "environ", "overrides", "words"),
    [
        ("[server]\nport = 70000\n", {}, {}, ["server.port", "config.toml"]),
        ("", {"SPECMESH_EXAMPLE__SERVER__PORT": "x"}, {}, ["server.port", "SPECMESH_EXAMPLE__SERVER__PORT"]),
        ("", {}, {"server__prot": "1"}, ["server.prot", "no such key", "--set server.prot"]),
        ("", {}, {"ratio": "nan"}, ["ratio", "finite"]),
        ("title = ", {}, {}, ["config.toml", "not valid TOML"]),
        ("", {}, {"pools": "[{"}, ["--set pools", "not a TOML value"]),
        ('server = "x"', {}, {"server__port": "1"}, ["server.port", "is a value, not a section"]),
        ('[[pools]]\nname = "a"\n', {}, {}, ["pools.0.addresses", "required"]),
    ],
)
def test_a_bad_setting_is_named_with_its_origin(
    tmp_path: Path, text: str, environ: dict[str, str], overrides: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ, **overrides)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_config(Example, path=tmp_path / "absent.toml", environ={}, overrides={}, prefix="X")


def test_other_variables_of_the_environment_are_not_read(tmp_path: Path) -> None:
    assert load(tmp_path, "", {"SPECMESH_CACHE": "/x", "SPECMESH_EXAMPLES__RATIO": "9"}) == Example()

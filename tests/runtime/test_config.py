from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Optional, Self, Union

import pytest
from pydantic import AfterValidator, ByteSize, Field, ValidationError, model_validator

from specmesh.runtime.config import ConfigError, ConfigModel, ServerConfig, load_config
from specmesh.runtime.given import KeyFault


def not_empty(name: str) -> str:
    if not name:
        raise ValueError("is empty")
    return name


class Pool(ConfigModel):
    name: Annotated[str, AfterValidator(not_empty)]
    addresses: tuple[str, ...]


class Example(ConfigModel):
    title: str = "none"
    ratio: float = 0.5
    server: ServerConfig = ServerConfig()
    pools: tuple[Pool, ...] = ()


def at_most_1(ratio: float) -> float:
    if ratio > 1:
        raise ValueError("at most 1")
    return ratio


class Strict(Example):
    """With faults that types cannot say: one of several keys together, and one that only shows in the end."""

    needed: int
    ratio: Annotated[float, AfterValidator(at_most_1)] = 0.5
    pools: tuple[Pool, ...] = Field(default=(Pool(name="p", addresses=()),), min_length=1)

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        if any(pool.name == "q" for pool in self.pools):
            raise KeyFault("pools", "q is taken")
        if any(pool.name == "r" for pool in self.pools):
            raise ValueError("title of a pool is taken")
        return self

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.needed == 7:
            yield "needed", "7 is not there"


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


def test_true_and_false_are_given_where_they_are_meant(tmp_path: Path) -> None:
    assert load(tmp_path, "[server]\nreflection = true").server.reflection
    assert load(tmp_path, "", {"SPECMESH_EXAMPLE__SERVER__REFLECTION": "true"}).server.reflection


def test_a_table_that_is_given_replaces_the_whole_section(tmp_path: Path) -> None:
    text = "[server]\nport = 1\ndrain_seconds = 7\n"
    server = load(tmp_path, text, server="{port = 2}").server
    assert (server.port, server.drain_seconds) == (2, ServerConfig().drain_seconds)


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
        ('server = "x"', {}, {"server__port": "1"}, ["server.port: server is a value, not a section", "config.toml)"]),
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


@pytest.mark.parametrize(
    ("text", "environ", "overrides", "said"),
    [
        ("", {}, {}, "needed: is required (not given)"),
        ("needed = 1\nratio = 2", {}, {}, "ratio: at most 1 (from config.toml)"),
        ('needed = 1\n[[pools]]\nname = "a"', {}, {}, "pools.0.addresses: is required (from config.toml)"),
        ("needed = 1", {"X__POOLS": '[{name = "a"}]'}, {}, "pools.0.addresses: is required (from X__POOLS)"),
        ("needed = 1\nratio = 2", {"X__RATIO": "3"}, {}, "ratio: at most 1 (from X__RATIO)"),
        (
            "needed = 1\n[server]\ndrain_seconds = 1",
            {},
            {"server.min_drain_seconds": "2"},
            "server.min_drain_seconds: must not exceed drain_seconds (from --set server.min_drain_seconds)",
        ),
        (
            "needed = 1\n[server]\nmin_drain_seconds = 40",
            {},
            {"server.port": "1"},
            "server.min_drain_seconds: must not exceed drain_seconds (from config.toml)",
        ),
        ("needed = 1", {}, {"pools": '[{name = "q", addresses = []}]'}, "pools: q is taken (from --set pools)"),
        (
            "needed = 1\ntitle = 'x'\npools = [{name = 'r', addresses = []}]",
            {},
            {},
            "configuration: title of a pool is taken (from config.toml)",
        ),
        ("needed = true", {}, {}, "needed: must be a number (from config.toml)"),
        ("needed = 1\nratio = false", {}, {}, "ratio: must be a number (from config.toml)"),
        ("needed = 1\n[server]\nhealth_port = true", {}, {}, "server.health_port: must be a number (from config.toml)"),
        ("needed = 7", {}, {"title": "x"}, "needed: 7 is not there (from config.toml)"),
        ("needed = 1", {}, {"pools": '[{name = "", addresses = []}]'}, "pools.0.name: is empty (from --set pools)"),
        ("needed = 1\n[server.tls]\ncert_file = 'c'", {}, {}, "server.tls.key_file: is required (from config.toml)"),
    ],
)  # fmt: skip
def test_each_fault_says_where_the_value_came_from(
    tmp_path: Path, text: str, environ: dict[str, str], overrides: dict[str, str], said: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(Strict, path=path, environ=environ, overrides=overrides, prefix="X", here=True)
    assert list(caught.value.faults) == [said.replace("config.toml", str(path))]


class Numbers(ConfigModel):
    """Every way in which a key can hold numbers."""

    lengths: tuple[int, ...] = ()
    pair: tuple[str, float] = ("", 0.0)
    switches: tuple[bool, ...] = ()
    mixed: tuple[bool, int] = (True, 1)
    weights: dict[str, float | None] = Field(default_factory=dict)
    optional: Optional[float] = None  # noqa: UP045  the old way of writing it
    either: Union[int, str] = 0  # noqa: UP007  the same
    annotated: Annotated[int, Field(ge=0)] | None = None
    rows: tuple[tuple[int, ...], ...] | None = None
    flag_or_number: bool | int = False
    size: ByteSize | None = None
    exact: frozenset[Annotated[int, Field(ge=0)]] = frozenset()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lengths", (True, False)),
        ("lengths", [1, True]),
        ("pair", ("", False)),
        ("mixed", (True, True)),
        ("weights", {"a": True}),
        ("optional", True),
        ("either", True),
        ("annotated", True),
        ("rows", [[1], [True]]),
        ("size", True),
        ("exact", {True}),
    ],
)
def test_true_and_false_are_no_numbers_wherever_they_stand(key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=r"must (be a number|hold numbers, not true or false)"):
        Numbers.model_validate({key: value})


def test_true_and_false_are_taken_where_they_are_meant() -> None:
    given = {"switches": [True, False], "mixed": [True, 1], "flag_or_number": True, "lengths": [0, 1], "pair": ["", 1]}
    numbers = Numbers.model_validate(given)
    assert (numbers.switches, numbers.mixed, numbers.flag_or_number) == ((True, False), (True, 1), True)
    assert (numbers.lengths, numbers.pair) == ((0, 1), ("", 1.0))


def test_all_faults_are_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("ratio = 3\nnobody = 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(Strict, path=path, environ={"X__SERVER__PORT": "x"}, overrides={}, prefix="X")
    fields = [fault.partition(":")[0] for fault in caught.value.faults]
    assert sorted(fields) == ["needed", "nobody", "ratio", "server.port"]
    assert str(caught.value) == "; ".join(caught.value.faults)

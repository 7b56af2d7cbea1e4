"""Who a caller is, by token and by certificate, and what that allows."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError
from still_clock import StillClock

from specmesh.router.callers import Callers, NotAuthenticated
from specmesh.router.config import CallerConfig, PoolConfig, RouterConfig
from specmesh.runtime.config import ConfigError, ServerConfig, TlsConfig, load_config
from specmesh.runtime.errors import NotAllowed
from specmesh.runtime.reloading import RECHECK_SECONDS

POOLS = (PoolConfig(name="a", addresses=("x:1",)), PoolConfig(name="b", addresses=("x:2",)))
OLD, NEW = "old-token-of-team", "new-token-of-team"


def config(*callers: CallerConfig, **more: object) -> RouterConfig:
    return RouterConfig(verifiers=("v:1",), pools=POOLS, callers=callers, **more)  # type: ignore[arg-type]


def bearer(token: str) -> dict[str, str | bytes]:
    return {"authorization": f"Bearer {token}"}


def test_without_callers_everybody_may_do_everything() -> None:
    caller = Callers(config()).identify({}, "ipv4:10.0.0.1:555")
    assert caller.pools == {"a", "b"}
    for role in ("client", "debug", "operator"):
        caller.require(role)
    assert Callers(config()).identify({}, "ipv4:10.0.0.1:556").name == caller.name


def test_a_token_names_its_caller_and_grants() -> None:
    """C42: a caller's contexts reach its own pools only."""
    callers = Callers(config(CallerConfig(name="team", token="secret", pools=("a",), roles=frozenset({"debug"}))))
    caller = callers.identify(bearer("secret"), "p")
    assert (caller.name, caller.pools) == ("team", {"a"})
    caller.require("debug")
    for role in ("operator", "client"):
        with pytest.raises(NotAllowed, match=role):
            caller.require(role)
    for metadata in (
        {},
        bearer("wrong"),
        bearer(""),
        {"authorization": b"Bearer secret"},
        {"authorization": "Bearer "},
    ):
        with pytest.raises(NotAuthenticated):
            callers.identify(metadata, "p")


def test_a_caller_is_a_client_and_no_more_unless_told() -> None:
    caller = Callers(config(CallerConfig(name="team", token="secret"))).identify(bearer("secret"), "p")
    caller.require("client")
    for role in ("debug", "operator"):
        with pytest.raises(NotAllowed, match=role):
            caller.require(role)


def with_authority(*callers: CallerConfig) -> RouterConfig:
    tls = TlsConfig(cert_file=Path("c"), key_file=Path("k"), client_ca_file=Path("a"))
    return config(*callers, server=ServerConfig(tls=tls))


def test_a_certificate_names_its_caller_where_no_token_does() -> None:
    """A token that is given must be right, whatever certificate comes with it."""
    callers = Callers(
        with_authority(
            CallerConfig(name="batch", identities=("spiffe://mesh/batch", "batch.mesh"), pools=("b",)),
            CallerConfig(name="team", token="secret"),
        )
    )
    for identities in ({"batch.mesh"}, {"other", "spiffe://mesh/batch"}):
        assert callers.identify({}, "p", frozenset(identities)).name == "batch"
    assert callers.identify(bearer("secret"), "p", frozenset({"batch.mesh"})).name == "team"
    for metadata, identities in ((bearer("wrong"), {"batch.mesh"}), ({}, {"stranger.mesh"})):
        with pytest.raises(NotAuthenticated):
            callers.identify(metadata, "p", frozenset(identities))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(OLD + "\n")
    return path


def rewrite(path: Path, content: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(content)
    os.replace(new, path)


def holds(callers: Callers, token: str) -> bool:
    try:
        return callers.identify(bearer(token), "p").name == "team"
    except NotAuthenticated:
        return False


def test_a_token_file_rotates_while_both_tokens_hold(token_file: Path) -> None:
    """Old; old and new; new; none: each as soon as the file says so, without a restart."""
    clock = StillClock()
    callers = Callers(config(CallerConfig(name="team", token_file=token_file)), clock=clock)
    assert (holds(callers, OLD), holds(callers, NEW)) == (True, False)
    for content, expected in ((f"{OLD}\n{NEW}\n", (True, True)), (f"{NEW}\n", (False, True)), ("", (False, False))):
        rewrite(token_file, content)
        clock.pass_seconds(RECHECK_SECONDS)
        assert (holds(callers, OLD), holds(callers, NEW)) == expected


def test_a_token_file_that_is_gone_revokes_its_tokens(token_file: Path) -> None:
    clock = StillClock()
    callers = Callers(config(CallerConfig(name="team", token_file=token_file)), clock=clock)
    token_file.unlink()
    clock.pass_seconds(RECHECK_SECONDS)
    assert not holds(callers, OLD)


def test_a_bad_token_file_keeps_the_old_tokens_and_shows_none(
    token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StillClock()
    callers = Callers(config(CallerConfig(name="team", token_file=token_file)), clock=clock)
    rewrite(token_file, "short-one")
    clock.pass_seconds(RECHECK_SECONDS)
    assert holds(callers, OLD)
    assert not holds(callers, "short-one")
    assert "16 characters" in str([vars(record) for record in caplog.records])
    assert "short-one" not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize(("content", "reason"), [(None, "not there"), ("\n", "no token"), ("short", "16 characters")])
def test_a_token_file_that_cannot_be_used_stops_the_start(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        Callers(config(CallerConfig(name="team", token_file=path)))
    assert "callers.token_file" in str(caught.value)
    assert "short" not in str(caught.value).replace(str(path), "")


@pytest.mark.parametrize(
    ("callers", "reason"),
    [
        ([{"name": "team"}], "is needed to know the caller by"),
        ([{"name": "team", "token": ""}], "is empty"),
        ([{"name": "team", "token": "a", "token_file": "b"}], "exclude each other"),
        ([{"name": "team", "identities": ["x"]}], "client_ca_file"),
        ([{"name": "team", "token": "a"}, {"name": "team", "token": "b"}], "same name"),
        ([{"name": "team", "token": "a", "roles": ["admin"]}], "roles"),
    ],
)
def test_callers_that_could_not_be_told_apart_are_refused(callers: list[dict[str, object]], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        RouterConfig.model_validate({"verifiers": ["v:1"], "callers": callers})


def test_no_error_and_no_print_shows_a_token(tmp_path: Path) -> None:
    """A slip beside a token must not bring the token to the log."""
    path = tmp_path / "router.toml"
    path.write_text(f'verifiers = ["v:1"]\n[[callers]]\nname = "bad name"\ntoken = "{OLD}"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(RouterConfig, path=path, environ={}, overrides={}, prefix="SPECMESH_ROUTER")
    assert "callers.0.name" in str(caught.value)
    assert OLD not in str(caught.value)
    assert OLD not in repr(config(CallerConfig(name="team", token=OLD)))  # type: ignore[arg-type]

"""Configuration: frozen models and the one loader (file < environment < flags).

Every key can be given in three ways: `port = 50051` under `[server]` in the TOML file,
`SPECMESH_VERIFIER__SERVER__PORT=50051` in the environment, `--set server.port=50051` on the command line.
A value that starts with `[`, `{` or a quote is read as TOML, anything else as text that the key's type parses.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specmesh.runtime.address import Host

M = TypeVar("M", bound=BaseModel)


class ConfigError(ValueError):
    """A setting that cannot be used; the message names the key, the value's fault and where it was given."""


class ConfigModel(BaseModel):
    """Base of all configuration: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TlsConfig(ConfigModel):
    """PEM files of a server, read again when they change. With `client_ca_file`, a client must show a certificate
    signed by it.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None


class ClientTls(ConfigModel):
    """PEM files of a client. Without `ca_file` the system's roots are used."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None

    @model_validator(mode="after")
    def _certificate_has_key(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file are given together or not at all")
        return self


class ServerConfig(ConfigModel):
    """What every server of the mesh can be told."""

    host: Host = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 lets the system choose; the ready line says which it was."""
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=64 * 1024)
    max_concurrent_calls: int = Field(default=4096, ge=1)
    keepalive_seconds: float = Field(default=10.0, gt=0)
    """Interval of pings, a server's own and a router's to drafts and verifiers, by which a peer is noticed that is gone
    or hangs.
    """
    max_unread_seconds: float = Field(default=30.0, gt=0)
    """A stream ends of which its client takes nothing for so long while there is something to read."""
    min_ping_interval_seconds: float = Field(default=5.0, ge=0)
    """A client that pings more often is sent away; every client of the mesh pings at this interval or less often."""
    drain_seconds: float = Field(default=30.0, ge=0)
    min_drain_seconds: float = Field(default=0.0, ge=0)
    """A drain lasts at least so long, though nothing is in flight: whoever still calls is told to go elsewhere until
    load balancers have noticed. What arrives at the moment of the end itself is cut.
    """
    reflection: bool = False
    channelz: bool = False
    tls: TlsConfig | None = None
    health_port: int | None = Field(default=None, ge=0, le=65535)
    """A second port without TLS that answers `grpc.health.v1` and nothing else, for probes that have no certificate."""
    allow: dict[Annotated[str, Field(pattern=r"^(\*|[\w.]+/(\*|\w+))$")], tuple[str, ...]] = Field(default_factory=dict)
    """Identities (DNS names and URIs of a client's certificate) by `package.Service/Method`, `package.Service/*` or
    `*`; the closest entry holds. Empty: whoever connects may call everything.
    """

    @model_validator(mode="after")
    def _drains_end(self) -> Self:
        if self.min_drain_seconds > self.drain_seconds:
            raise ValueError("min_drain_seconds: must not exceed drain_seconds")
        return self

    @model_validator(mode="after")
    def _allowed_peers_can_be_known(self) -> Self:
        if self.allow and (self.tls is None or self.tls.client_ca_file is None):
            raise ValueError("allow: needs tls.client_ca_file, without which nobody knows who calls")
        return self


class LogConfig(ConfigModel):
    """How a service logs, to standard error."""

    json_lines: bool = True
    level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")


def load_config(
    cls: type[M],
    *,
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, str],
    prefix: str,
    flags: Mapping[str, tuple[str, str]] | None = None,
) -> M:
    """Read `cls` from a TOML file, the environment (`prefix` + `__SECTION__KEY`) and flags.

    `overrides`: texts by key (`section.key`); `flags`: key and text by the name of a flag that stands for one key.
    Raises `ConfigError` naming the key and where its value came from.
    """
    tree = _read_file(path)
    origins: dict[tuple[str, ...], str] = {}
    for name, text in environ.items():
        if name.startswith(prefix + "__"):
            keys = tuple(name[len(prefix) + 2 :].lower().split("__"))
            _put(tree, keys, text, name, origins)
    for name, text in overrides.items():
        _put(tree, tuple(name.split(".")), text, f"--set {name}", origins)
    for name, (key, text) in (flags or {}).items():
        if key in overrides:
            raise ConfigError(f"{key}: given twice, by {name} and --set {key}")
        _put(tree, tuple(key.split(".")), text, name, origins)
    try:
        return cls.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error, path, origins)) from None


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from None


def _put(
    tree: dict[str, Any], keys: tuple[str, ...], text: str, origin: str, origins: dict[tuple[str, ...], str]
) -> None:
    for key in keys[:-1]:
        below = tree.setdefault(key, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{'.'.join(keys)}: {key} is a value, not a section (from {origin})")
        tree = below
    tree[keys[-1]] = _parse(text, origin)
    origins[keys] = origin


def _parse(text: str, origin: str) -> object:
    if not text.startswith(("[", "{", '"', "'")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not a TOML value: {error}") from None


def _explain(error: ValidationError, path: Path | None, origins: Mapping[tuple[str, ...], str]) -> str:
    lines = []
    for fault in error.errors(include_url=False, include_context=False):
        where = tuple(str(part) for part in fault["loc"])
        origin = next((origins[where[:n]] for n in range(len(where), 0, -1) if where[:n] in origins), None)
        source = origin or (str(path) if path else "defaults")
        message = "no such key" if fault["type"] == "extra_forbidden" else fault["msg"].removeprefix("Value error, ")
        lines.append(f"{'.'.join(where) or 'configuration'}: {message} (from {source})")
    return "; ".join(lines)

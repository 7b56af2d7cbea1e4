"""Configuration: frozen models and the one loader (file < environment < flags).

Every key can be given in three ways: `port = 50051` under `[server]` in the TOML file,
`SPECMESH_VERIFIER__SERVER__PORT=50051` in the environment, `--set server.port=50051` on the command line.
A value that starts with `[`, `{` or a quote is read as TOML, anything else as text that the key's type parses.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from pathlib import Path
from types import UnionType
from typing import Annotated, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from specmesh.runtime.address import Host
from specmesh.runtime.given import ConfigError, Fault, Given, KeyFault, Keys

__all__ = [
    "ClientTls",
    "ConfigError",
    "ConfigModel",
    "LogConfig",
    "ServerConfig",
    "TlsConfig",
    "load_config",
    "validated",
]

M = TypeVar("M", bound=BaseModel)


class ConfigModel(BaseModel):
    """Base of all configuration: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        """pydantic would take it for a 1."""
        if _true_for_a_number(value, cls.model_fields[info.field_name or ""].annotation):
            raise ValueError("must be a number" if isinstance(value, bool) else "must hold numbers, not true or false")
        return value

    def faults(self) -> Iterable[tuple[str, Fault]]:
        """Key and fault of what types and validators cannot say, as that a file is not there; none by default."""
        return ()


def _true_for_a_number(value: object, annotation: object) -> bool:
    """Whether it is True or False, or holds one, in a place where a number is expected and neither of them is."""
    kinds = tuple(_alternatives(annotation))
    if isinstance(value, bool):
        return bool not in kinds and not {int, float, ByteSize}.isdisjoint(kinds)
    within = [pair for kind in kinds for pair in _parts(value, kind)]
    return any(_true_for_a_number(part, inner) for part, inner in within)


def _alternatives(annotation: object) -> Iterator[object]:
    """The kinds of values that a key may have, collections with what they hold."""
    if get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        yield from (kind for each in get_args(annotation) for kind in _alternatives(each))
    else:
        yield annotation


def _parts(value: object, kind: object) -> Iterable[tuple[object, object]]:
    """What a value holds, each part with the annotation of its place in a collection of this kind."""
    inner = get_args(kind)
    if isinstance(value, Mapping) and get_origin(kind) is dict:
        return [pair for item in value.items() for pair in zip(item, inner, strict=True)]
    if isinstance(value, list | tuple | set | frozenset) and get_origin(kind) in (list, tuple, set, frozenset):
        return zip(value, inner if len(inner) > 1 and Ellipsis not in inner else repeat(inner[0]), strict=False)
    return ()


class TlsConfig(ConfigModel):
    """PEM files of a server, read again when they change. With `client_ca_file`, a client must show a certificate
    signed by it.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def faults(self) -> Iterable[tuple[str, str]]:
        """Files that cannot be read."""
        return _unreadable(self, ("cert_file", "key_file", "client_ca_file"))


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

    def faults(self) -> Iterable[tuple[str, str]]:
        """Files that cannot be read."""
        return _unreadable(self, ("ca_file", "cert_file", "key_file"))


def _unreadable(files: ConfigModel, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        path: Path | None = getattr(files, name)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            yield name, f"cannot read {path}: {error.strerror}"


class ServerConfig(ConfigModel):
    """What every server of the mesh can be told."""

    host: Host = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 lets the system choose; the ready line says which it was."""
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=64 * 1024, le=(1 << 30) - 1)
    """Up to twice as much is taken in, and refused in words; gRPC counts in 31 bits."""
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
            raise KeyFault("min_drain_seconds", "must not exceed drain_seconds")
        return self

    @model_validator(mode="after")
    def _allowed_peers_can_be_known(self) -> Self:
        if self.allow and (self.tls is None or self.tls.client_ca_file is None):
            raise KeyFault("allow", "needs tls.client_ca_file, without which nobody knows who calls")
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
    here: bool = False,
) -> M:
    """Read `cls` from a TOML file, the environment (`prefix` + `__SECTION__KEY`) and flags.

    `overrides`: texts by key (`section.key`); `flags`: key and text by the name of a flag that stands for one key.
    With `here` it is for this machine: what it names, such as files, must be there.
    Raises `ConfigError` naming each key and where its value came from.
    """
    given = Given()
    if path is not None:
        given.add_file(path)
    given.add_environment(environ, prefix)
    for name, text in overrides.items():
        given.add_text(tuple(name.split(".")), text, f"--set {name}")
    for name, (key, text) in (flags or {}).items():
        if key in overrides:
            raise ConfigError(f"{key}: given twice, by {name} and --set {key}")
        given.add_text(tuple(key.split(".")), text, name)
    return validated(cls, given, here=here)


def validated(cls: type[M], given: Given, section: Keys = (), *, here: bool = False) -> M:
    """`cls` of what was given. Raises `ConfigError` with every fault; `section` goes before the keys that it names."""
    try:
        config = cls.model_validate(given.tree)
    except ValidationError as error:
        raise ConfigError(*given.explain(error, section)) from None
    found = _further_faults(config, ()) if here else ()
    if faults := [given.fault(keys, message, section) for keys, message in found]:
        raise ConfigError(*faults)
    return config


def _further_faults(config: BaseModel, at: Keys) -> Iterator[tuple[Keys, Fault]]:
    if isinstance(config, ConfigModel):
        yield from (((*at, *key.split(".")), message) for key, message in config.faults())
    for name in type(config).model_fields:
        value = getattr(config, name)
        below = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for index, each in below:
            if isinstance(each, BaseModel):
                yield from _further_faults(each, (*at, name) if index is None else (*at, name, str(index)))

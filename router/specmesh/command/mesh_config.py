"""Configuration of a whole mesh on one machine: `specmesh up --config FILE`."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specmesh.runtime.config import ConfigError, ConfigModel
from specmesh.runtime.given import KeyFault

POOL_NAME = r"^[A-Za-z0-9._-]{1,64}$"
DEFAULT_MODEL = "demo"
DEFAULT_PORT = 50050
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
NOBODY = "127.0.0.1:1"
"""Address of a service that has none yet, or ended before it had one. A pool stays, so that what names it means
something.
"""


class DraftProcess(BaseModel):
    """One draft service and its pool; every other key is one of `specmesh draft`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    pool: str = Field(pattern=POOL_NAME)
    trust: Literal["full", "untrusted"] = "full"

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration of the service itself."""
        return dict(self.model_extra or {})


class MeshConfig(ConfigModel):
    """`[verifier]` and `[router]` hold keys of those services, `[[drafts]]` one process each."""

    verifier: dict[str, Any] = Field(default_factory=lambda: {"model": DEFAULT_MODEL})
    drafts: tuple[DraftProcess, ...] = ()
    router: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _pools_are_told_apart(self) -> Self:
        pools = [draft.pool for draft in self.drafts]
        if twice := next((pool for pool in pools if pools.count(pool) > 1), None):
            raise KeyFault("drafts", f'two drafts have the pool "{twice}"')
        return self


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as `--set key=value` arguments of a service."""
    return [word for key, value in _flat(settings, "") for word in ("--set", f"{key}={toml_value(value)}")]


def _flat(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def toml_value(value: object) -> str:
    """One value as TOML. Raises `ConfigError` for what TOML cannot say."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(_toml_pairs(value)) + "}"
    raise ConfigError(f"{value!r} cannot be passed to a service")


def _toml_pairs(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
        yield f"{name} = {toml_value(value)}"


def mesh_toml(config: MeshConfig) -> str:
    """A file for `specmesh up --config` that says the same. Raises `ConfigError` for what TOML cannot say."""
    tables = [("[verifier]", config.verifier)]
    tables += [("[[drafts]]", {"pool": draft.pool, "trust": draft.trust, **draft.settings}) for draft in config.drafts]
    tables.append(("[router]", config.router))
    return "\n".join("\n".join([header, *_toml_pairs(table), ""]) for header, table in tables)

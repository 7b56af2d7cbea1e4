"""Configuration of a whole mesh on one machine: `specmesh up --config FILE`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specmesh.runtime.config import ConfigError, ConfigModel

DEFAULT_PORT = 50050
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"


class DraftProcess(BaseModel):
    """One draft service and its pool; every other key is one of `specmesh draft`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    pool: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    trust: Literal["full", "untrusted"] = "full"

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration of the service itself."""
        return dict(self.model_extra or {})


class MeshConfig(ConfigModel):
    """`[verifier]` and `[router]` hold keys of those services, `[[drafts]]` one process each."""

    verifier: dict[str, Any] = Field(default_factory=lambda: {"model": "demo"})
    drafts: tuple[DraftProcess, ...] = ()
    router: dict[str, Any] = Field(default_factory=dict)


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
        return "{" + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    raise ConfigError(f"{value!r} cannot be passed to a service")

"""Settings of a kind of draft, checked by the kind itself."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from specmesh.runtime.config import ConfigError, ConfigModel

S = TypeVar("S", bound=ConfigModel)


def parse_settings(cls: type[S], settings: Mapping[str, Any]) -> S:
    """The `[drafter]` section as `cls`. Raises `ConfigError` naming the key."""
    try:
        return cls.model_validate(dict(settings))
    except ValidationError as error:
        faults = [
            f"drafter.{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_context=False)
        ]
        raise ConfigError("; ".join(faults)) from None

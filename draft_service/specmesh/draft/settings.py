"""Settings of a kind of draft: the section `drafter`, checked when the configuration is read where that needs no torch,
and by the kind itself.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

from pydantic import ValidationError

from specmesh.runtime.config import ConfigError, ConfigModel
from specmesh.runtime.given import Fault, KeyFault, Keys, faults_of

SETTINGS = {
    "hf": "specmesh.draft.hf_settings.HfSettings",
    "lookup": "specmesh.draft.lookup.LookupSettings",
    "table": "specmesh.draft.table_settings.TableSettings",
}
"""Kind to settings that can be imported without torch."""

S = TypeVar("S", bound=ConfigModel)


def parse_settings(cls: type[S], settings: Mapping[str, Any]) -> S:
    """The `[drafter]` section as `cls`. Raises `ConfigError` naming the key."""
    try:
        return cls.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(*(_of_the_section(keys, fault) for keys, fault in faults_of(error))) from None


def _of_the_section(keys: Keys, fault: Fault) -> KeyFault:
    own, message = ((fault.key,), fault.message) if isinstance(fault, KeyFault) else ((), fault)
    return KeyFault(".".join(("drafter", *keys, *own)), message)


def settings_faults(kind: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Fault]]:
    """Key within the section and fault, of a kind listed above; of others none, as they tell when they are made."""
    if kind not in SETTINGS:
        return
    module, _, name = SETTINGS[kind].rpartition(".")
    cls: type[ConfigModel] = getattr(import_module(module), name)
    try:
        yield from cls.model_validate(dict(settings)).faults()
    except ValidationError as error:
        yield from ((".".join(keys), message) for keys, message in faults_of(error))

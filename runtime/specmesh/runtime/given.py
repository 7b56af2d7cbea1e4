"""Settings as they were given: a tree of values, and where each of them came from."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

Keys = tuple[str, ...]

IS_REQUIRED = "is required"
SECTION, LIST = "must be a section", "must be a list"
WORDS = {
    "extra_forbidden": "no such key",
    "missing": IS_REQUIRED,
    "tuple_type": LIST,
    "dict_type": SECTION,
    "model_type": SECTION,
    "model_attributes_type": SECTION,
}
"""For what pydantic says in words of its own."""


class KeyFault(ValueError):
    """What is wrong with a key, `section.key` from where it is found, that only shows beside others or the machine."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


Fault = str | KeyFault


class ConfigError(ValueError):
    """Settings that cannot be used; each fault names the key, what is wrong with its value and where it was given."""

    def __init__(self, *found: Fault) -> None:
        self.found = found
        self.faults = tuple(map(str, found))
        super().__init__("; ".join(self.faults))


class Given:
    """What was given so far; what is added later wins."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self._origins: dict[Keys, str] = {}

    def add_file(self, path: Path) -> None:
        """A TOML file. Raises `ConfigError`."""
        self.add_table(read_toml(path), str(path))

    def add_environment(self, environ: Mapping[str, str], prefix: str) -> None:
        """Variables named `prefix` + `__SECTION__KEY`. Raises `ConfigError`."""
        for name, text in environ.items():
            if name.startswith(prefix + "__"):
                self.add_text(tuple(name[len(prefix) + 2 :].lower().split("__")), text, name)

    def add_table(self, table: Mapping[str, Any], origin: str, at: Keys = ()) -> None:
        """Every value of a table and of the tables within it; an empty one is a section, and takes nothing away.

        Raises `ConfigError`.
        """
        for key, value in table.items():
            keys = (*at, key)
            if isinstance(value, Mapping) and value:
                self.add_table(value, origin, keys)
            elif not isinstance(value, Mapping) or not isinstance(value_at(self.tree, keys), Mapping):
                self._put(keys, value, origin)

    def add_text(self, keys: Keys, text: str, origin: str) -> None:
        """One value as text; what starts with `[`, `{` or a quote is TOML, and a table replaces a whole section.

        Raises `ConfigError`.
        """
        value = _parse(text, origin)
        if isinstance(value, dict):
            self._put(keys, {}, origin)
            self.add_table(value, origin, keys)
        else:
            self._put(keys, value, origin)

    def add(self, other: "Given", at: Keys) -> None:
        """What `other` holds within its section `at`, with the origins that it has there."""
        for keys, origin in other._origins.items():
            if keys[: len(at)] == at and len(keys) > len(at):
                *above, key = keys[len(at) :]
                self.add_table({key: value_at(other.tree, keys)}, origin, tuple(above))

    def _put(self, keys: Keys, value: object, origin: str) -> None:
        tree = self.tree
        for depth, key in enumerate(keys[:-1], 1):
            tree = tree.setdefault(key, {})
            if not isinstance(tree, dict):
                source = " and ".join(self.origins(keys[:depth])) or origin
                raise ConfigError(f"{'.'.join(keys)}: {key} is a value, not a section (from {source})")
        tree[keys[-1]] = {} if value == {} else value  # a section of its own, that others may be put into
        # Neither what stood in this place, nor the empty sections around it.
        apart = {each for each in self._origins if each[: len(keys)] != keys and keys[: len(each)] != each}
        self._origins = {each: known for each, known in self._origins.items() if each in apart}
        self._origins[keys] = origin

    def origins(self, keys: Keys) -> Sequence[str]:
        """Where the value came from that is at `keys`, or that they lie within; of a section, where its values did."""
        if at := self._holds_value(keys):
            return [self._origins[at]]
        return list(dict.fromkeys(origin for each, origin in self._origins.items() if each[: len(keys)] == keys))

    def _holds_value(self, keys: Keys) -> Keys:
        """Where the value was given that `keys` are or lie within; empty for a section."""
        return next((keys[:length] for length in range(len(keys), 0, -1) if keys[:length] in self._origins), ())

    def explain(self, error: ValidationError, section: Keys = ()) -> Iterator[str]:
        """A line for each fault that validating the tree has shown; `section` goes before every key."""
        for keys, fault in faults_of(error):
            yield self.fault(keys, fault, section)

    def fault(self, keys: Keys, fault: Fault, section: Keys = ()) -> str:
        """One fault as a line: key, what is wrong, where it was given; a fault's own key only if that was given."""
        message = str(fault)
        missing = message == IS_REQUIRED
        if isinstance(fault, KeyFault) and self.origins(deeper := (*keys, *fault.key.split("."))):
            keys, message = deeper, fault.message
        origins = self.origins(keys) or (self.origins(keys[:-1]) if missing and keys[:-1] else [])
        source = f"from {' and '.join(origins)}" if origins else "not given" if missing else "the default"
        return f"{'.'.join((*section, *keys)) or 'configuration'}: {message} ({source})"


def faults_of(error: ValidationError) -> Iterator[tuple[Keys, Fault]]:
    """Keys and fault of each."""
    faults = error.errors(include_url=False)
    for fault in faults:
        keys = fault["loc"]
        # pydantic counts what is left of a list without its bad items.
        if fault["type"] == "too_short" and any(each["loc"][:-1][: len(keys)] == keys for each in faults):
            continue
        raised = fault.get("ctx", {}).get("error")
        message = WORDS.get(fault["type"], fault["msg"].removeprefix("Value error, "))
        yield tuple(map(str, keys)), raised if isinstance(raised, KeyFault) else message


def value_at(tree: Mapping[str, Any], keys: Keys) -> object:
    """None where nothing is."""
    value: object = tree
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from None


def _parse(text: str, origin: str) -> object:
    if not text.startswith(("[", "{", '"', "'")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not a TOML value: {error}") from None

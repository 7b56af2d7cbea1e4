"""Write the keys of the services' configurations where the chart looks them up: `python packaging/chart_keys.py`.

A key that no service knows would otherwise be found out by the new pods of a rollout, after the old ones have gone.
"""

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin

from pydantic import BaseModel

from specmesh.draft.config import DraftConfig
from specmesh.draft.hf_settings import HfSettings
from specmesh.draft.lookup import LookupSettings
from specmesh.draft.table_settings import TableSettings
from specmesh.router.config import RouterConfig
from specmesh.verifier.config import VerifierConfig

TARGET = Path(__file__).resolve().parent.parent / "deploy" / "helm" / "specmesh" / "config-keys.txt"
SETTINGS: dict[str, type[BaseModel]] = {"hf": HfSettings, "lookup": LookupSettings, "table": TableSettings}
"""What the section `drafter` holds, by kind of draft."""


def keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Dotted paths of all keys; of a section, those within it."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        choices = get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
        sections = [each for each in choices if isinstance(each, type) and issubclass(each, BaseModel)]
        if not sections:
            yield path + name
        for section in sections:
            yield from keys(section, f"{path}{name}.")


def text() -> str:
    """A line for each key of the router, the verifier and each kind of draft."""
    lines = [f"router {key}" for key in keys(RouterConfig)] + [f"verifier {key}" for key in keys(VerifierConfig)]
    for kind, settings in SETTINGS.items():
        known = [key for key in keys(DraftConfig) if key != "drafter"]
        lines += [f"draft-{kind} {key}" for key in (*known, *keys(settings, "drafter."))]
    return "".join(f"{line}\n" for line in sorted(lines))


if __name__ == "__main__":
    TARGET.write_text(text())

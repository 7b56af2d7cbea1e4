"""What the demo's mesh is made of: the model, prompt lookup, tables and distilled drafts of two domains.

What has to be fetched or built is kept in the user's cache and made by processes of their own: this one has no torch.
"""

import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files

from rich.console import Console

from specmesh.command.mesh_config import DraftProcess, MeshConfig
from specmesh.runtime.config import ConfigError

DOMAINS = ("code", "prose")
DISTILLED = ("code", "prose", "general")


def demo_config(console: Console) -> MeshConfig:
    """Fetch and build what is missing, then say which processes to run. Raises `ConfigError`."""
    _run("specmesh.model.demo", [], console)
    drafts = [_draft("lookup", "lookup", {})]
    drafts += [_draft(name, "hf", {"model": f"distilled:{name}"}) for name in DISTILLED if is_distilled(name)]
    if len(drafts) == 1:
        for domain in DOMAINS:
            _run("specmesh.draft.build_table", ["--domain", domain], console)
            drafts.append(_draft(f"table-{domain}", "table", {"table": f"demo:{domain}"}))
    return MeshConfig(verifier={"model": "demo"}, drafts=tuple(drafts))


def is_distilled(name: str) -> bool:
    """Whether this installation holds the weights of that draft."""
    return (files("specmesh.draft") / "weights" / name / "config.json").is_file()


def _draft(pool: str, kind: str, settings: dict[str, str]) -> DraftProcess:
    return DraftProcess.model_validate({"pool": pool, "kind": kind, "drafter": settings})


def _run(module: str, arguments: Sequence[str], console: Console) -> None:
    """One step of preparation; its progress goes where this process's goes."""
    command = [sys.executable, "-m", module, *arguments]
    if subprocess.run(command, stdout=console.file, stderr=console.file, check=False).returncode != 0:
        raise ConfigError(f"{module} failed; the message above says why. The same command goes on where it stopped.")

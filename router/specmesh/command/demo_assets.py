"""What the demo's mesh is made of: the target, and five drafts of it that each are the fastest somewhere.

The target is fetched and converted once, by a process of its own (this one has no torch), and kept in the user's cache.
The drafts are in the package.
"""

import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from specmesh.command.mesh_config import DraftProcess, MeshConfig
from specmesh.command.working import working
from specmesh.runtime.config import ConfigError
from specmesh.runtime.modules import module_command

TABLES = ("code", "prose")
"""n-gram tables that learn from the session; almost free."""
DISTILLED = ("code", "prose", "general")
"""Small models distilled from the target."""


def demo_mesh() -> MeshConfig:
    """Which processes the demo runs."""
    weights = Path(str(files("specmesh.draft"))) / "weights"
    drafts = [_draft(f"{name}-table", "table", {"path": str(weights / "tables" / f"{name}.npz")}) for name in TABLES]
    # A second thread gains them nothing and is in the verifier's way on a small machine.
    drafts += [_draft(name, "hf", {"source": f"distilled:{name}", "threads": 1}) for name in DISTILLED]
    # A few requests are to show what drafts do: none of them is held out.
    return MeshConfig(drafts=tuple(drafts), router={"sessions": {"hold_out": 0}})


def demo_model(console: Console) -> Path:
    """The folder of the demo's target, fetched and converted if it is not there yet. Raises `ConfigError`."""
    return Path(output_of("specmesh.model.demo", console).splitlines()[-1])


def _draft(pool: str, kind: str, settings: dict[str, str | int]) -> DraftProcess:
    return DraftProcess.model_validate({"pool": pool, "kind": kind, "drafter": settings})


def output_of(module: str, console: Console) -> str:
    """One step of preparation: what it says goes where this process's progress goes, its output comes back."""
    with (
        working(console, "looking for the demo's model"),
        # Not a pipe: it would be full while what is said is read.
        tempfile.TemporaryFile("w+", encoding="utf-8") as file,
        subprocess.Popen(module_command(module), stdout=file, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        try:
            for line in process.stderr:
                console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
            process.wait()
        except BaseException:  # the block's end would wait for it
            process.kill()
            raise
        file.seek(0)
        output = file.read()
    if process.returncode != 0:
        raise ConfigError(f"{module} failed; the message above says why. The same command goes on where it stopped.")
    return output

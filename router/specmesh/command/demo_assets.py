"""What the demo's mesh is made of: the model, prompt lookup, and drafts of two domains.

The domain drafts are distilled ones where this installation holds them, else n-gram tables. What has to be fetched or
counted is made once, by processes of their own (this one has no torch), and kept in the user's cache.
"""

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from specmesh.command.mesh_config import DraftProcess, MeshConfig
from specmesh.runtime.config import ConfigError

DISTILLED = ("code", "prose", "general")
MIN_PARAGRAPH = 80


def demo_config(console: Console) -> MeshConfig:
    """Fetch and build what is missing, then say which processes to run. Raises `ConfigError`."""
    model = demo_model(console)
    drafts = [_draft("lookup", "lookup", {})]
    drafts += [_draft(name, "hf", {"source": f"distilled:{name}"}) for name in DISTILLED if is_distilled(name)]
    if len(drafts) == 1:
        drafts += [
            _draft(f"{domain}-table", "table", {"path": str(path)}) for domain, path in _tables(model, console).items()
        ]
    return MeshConfig(verifier={"model": "demo"}, drafts=tuple(drafts))


def demo_model(console: Console) -> Path:
    """The folder of the demo's target, fetched and converted if it is not there yet. Raises `ConfigError`."""
    return Path(_run(["specmesh.model.demo"], console).splitlines()[-1])


def is_distilled(name: str) -> bool:
    """Whether this installation holds the weights of that draft."""
    return (files("specmesh.draft") / "weights" / name / "config.json").is_file()


def _draft(pool: str, kind: str, settings: dict[str, str]) -> DraftProcess:
    return DraftProcess.model_validate({"pool": pool, "kind": kind, "drafter": settings})


def _tables(model: Path, console: Console) -> dict[str, Path]:
    """An n-gram table of code and one of prose, both from what every Python brings along."""
    folder = model.parent.parent / "tables"
    folder.mkdir(exist_ok=True)
    code, prose = folder / f"code-{model.name}.npz", folder / f"prose-{model.name}.npz"
    if not code.exists():
        _build_table(model, code, "standard library", standard_library(), console)
    if not prose.exists():
        text = folder / "prose.txt"
        text.write_text(language_reference(), encoding="utf-8")
        _build_table(model, prose, "language reference", [text], console)
    return {"code": code, "prose": prose}


def _build_table(model: Path, output: Path, name: str, texts: Sequence[Path], console: Console) -> None:
    console.print(f"counting an n-gram table from {len(texts)} files ({name})")
    partial = output.with_suffix(".partial.npz")
    arguments = ["--tokenizer", model / "tokenizer.json", "--output", partial, "--name", name]
    _run(["specmesh.draft.build_table", *map(str, [*arguments, *texts])], console)
    partial.replace(output)


def standard_library() -> list[Path]:
    """Source of the modules of this Python."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def language_reference() -> str:
    """The paragraphs of Python's own manual, as `help()` has them."""
    from pydoc_data.topics import topics

    paragraphs = (" ".join(part.split()) for text in topics.values() for part in text.split("\n\n"))
    return "\n\n".join(paragraph for paragraph in paragraphs if len(paragraph) >= MIN_PARAGRAPH)


def _run(module_and_arguments: Sequence[str], console: Console) -> str:
    """One step of preparation: its progress goes where this process's goes, its output comes back."""
    command = [sys.executable, "-m", *module_and_arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=console.file, text=True, check=False)
    if done.returncode != 0:
        name = module_and_arguments[0]
        raise ConfigError(f"{name} failed; the message above says why. The same command goes on where it stopped.")
    return done.stdout

"""What can be meant by the name of a model, as far as names and files tell; nothing is loaded here."""

from pathlib import Path

DEMO = "demo"


def source_fault(source: str | Path) -> str:
    """Why nothing can be loaded by this name; empty for `demo`, a folder, a .gguf file, or what the hub may know."""
    path = Path(source)
    if source == DEMO or path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
        return ""
    if path.suffix == ".gguf":
        return f"{source}: no such file"
    if path.exists() or path.is_absolute() or str(source).startswith((".", "~")) or str(source).count("/") != 1:
        return f"{source} is neither `demo`, a folder that exists, a .gguf file nor a name on the hub"
    return ""

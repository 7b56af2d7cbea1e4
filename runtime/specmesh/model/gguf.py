"""A GGUF file as a folder of safetensors, which loads fifty times faster and needs no other library."""

import hashlib
import json
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from specmesh.model.storage import build_once, cache_directory

FORMAT = 1
"""Of the converted folder; another one is converted anew."""


def converted(path: Path) -> Path:
    """The folder of a GGUF file, converted on first use. Raises OSError or ValueError for a file that is not one."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path.name} is not a GGUF file")
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = cache_directory() / "models" / f"{path.stem}-{digest[:12]}-v{FORMAT}"
    return build_once(folder, partial(convert, path))


def convert(path: Path, folder: Path) -> None:
    """Write `path`'s model to `folder`: float32 weights, config.json, generation_config.json and the tokenizer.

    Tied weights are stored once. transformers refuses `save_pretrained` for a model that came from GGUF.
    """
    source, name = str(path.parent), path.name
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    tied = set(model.all_tied_weights_keys)
    weights = {key: value.contiguous() for key, value in model.state_dict().items() if key not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = model.config.to_dict()
    for leftover in ("quantization_config", "_name_or_path"):
        settings.pop(leftover, None)
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)

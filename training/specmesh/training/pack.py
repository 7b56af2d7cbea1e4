"""Pack a draft: int8 rows with a scale each, a configuration, digests."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save_file
from torch import Tensor
from transformers import AutoConfig

from specmesh.model.distilled import ABOUT, embedding_digest, read_embeddings
from specmesh.training.draft_model import shallow_config

_LARGEST = 127


def quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [R, C] and float16 [R, 1] with ``int8 * scale ~ matrix``: the largest magnitude of a row becomes 127."""
    smallest = torch.finfo(torch.float16).smallest_normal
    scale = (matrix.float().abs().amax(1, keepdim=True) / _LARGEST).clamp_min(smallest).half()
    return (matrix.float() / scale.float()).round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


def packed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 with ``NAME.scale``, vectors as float16, token ids as int32."""
    stored = {}
    for name, tensor in weights.items():
        on_host = tensor.detach().cpu()
        if name == "token_ids":
            stored[name] = on_host.int()
        elif on_host.ndim == 2:
            stored[name], stored[f"{name}.scale"] = quantise_rows(on_host)
        else:
            stored[name] = on_host.half()
    return {name: tensor.contiguous() for name, tensor in stored.items()}


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a draft's weights as safetensors."""
    save_file(packed(weights), path)


def write_package(folder: Path, weights: Path, target: Path, about: Mapping[str, Any]) -> None:
    """Lay out a draft's folder: model.safetensors and config.json, with the digests that loading checks.

    weights: what `save_weights` wrote. target: the folder of the target it was distilled from. about: name, layers,
    domains; kept in config.json and told by the model card.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = weights.read_bytes()
    (folder / "model.safetensors").write_bytes(content)
    config = shallow_config(AutoConfig.from_pretrained(target), about["layers"]).to_dict()
    for leftover in ("_name_or_path", "_model_name_or_path", "quantization_config", "transformers_version"):
        config.pop(leftover, None)
    embedding, _ = read_embeddings(target)
    digests = {"sha256": hashlib.sha256(content).hexdigest(), "embedding_sha256": embedding_digest(embedding)}
    about = {**about, "head": len(load(content)["token_ids"])}
    described = {**config, "tie_word_embeddings": False, ABOUT: {**about, **digests}}
    (folder / "config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def set_context_weights(folder: Path, weights: Sequence[float]) -> None:
    """Give a draft's folder the weights by which it may be mixed with the session's own past."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config[ABOUT]["context_weights"] = list(weights)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")

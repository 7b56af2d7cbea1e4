"""The target, loaded for training: a transformers causal LM in one dtype on one device."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel


def load_target(folder: Path, *, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """The causal LM of a local folder (config.json, *.safetensors), frozen, in evaluation mode."""
    config = AutoConfig.from_pretrained(folder)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, use_safetensors=True
    )
    frozen: PreTrainedModel = model.to(device).eval().requires_grad_(False)  # type: ignore[arg-type]
    return frozen

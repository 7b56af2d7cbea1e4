"""A model's weights over several ranks by transformers' own plan, and what is proved of that before it serves."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig

from specmesh.model.checks import SMALL_VOCABULARY, build_small, compare, randomise, shrink, without_warnings
from specmesh.model.errors import UnsupportedModel
from specmesh.model.paged import PagedModel
from specmesh.model.ranks import Ranks

logger = logging.getLogger(__name__)


def check_divides(config: PretrainedConfig, size: int) -> None:
    """Raises `UnsupportedModel` when the model's heads cannot be dealt out evenly, or transformers has no plan for it.

    A head of keys that two ranks share would have to be computed and cached twice.
    """
    text = config.get_text_config()
    heads = int(getattr(text, "num_attention_heads", 0) or 0)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    for number, what in ((kv_heads, "key-value heads"), (heads, "attention heads")):
        if number % size:
            raise UnsupportedModel(f"tensor_parallel: its {number} {what} cannot be divided among {size} ranks")
    if not getattr(text, "base_model_tp_plan", None):
        raise UnsupportedModel(f"tensor_parallel: transformers has no plan to divide a {text.model_type} model")


def sharded_options(ranks: Ranks) -> dict[str, Any]:
    """For `from_pretrained`: this rank's part of every weight, read and kept."""
    # It lists the layers that it does not divide: norms, which are not meant to be.
    logging.getLogger("transformers.distributed.tensor_parallel").setLevel(logging.ERROR)
    return {"distributed_config": DistributedConfig(tp_size=ranks.size)}


def check_sharded(config: PretrainedConfig, ranks: Ranks, load: Any) -> None:  # noqa: ANN401
    """Raises `UnsupportedModel` unless a small random model over these ranks equals the whole one with eager attention.

    `load(folder, dtype)`: as the model itself is loaded. All ranks must call it. Compared in float32, in one ragged
    forward of two sessions; every rank compares the logits that it has.
    """
    small = shrink(config, max_kv_heads=2 * ranks.size)
    small.tie_word_embeddings = bool(getattr(config, "tie_word_embeddings", False))
    with without_warnings(), TemporaryDirectory() as folder, torch.inference_mode():
        plain = build_small(small, "eager")
        randomise(plain)
        _save(plain, Path(folder))
        module = load(Path(folder), torch.float32)
    paged = PagedModel(module, device=ranks.device, dtype=torch.float32, vocabulary_size=SMALL_VOCABULARY)
    error = compare(plain, paged)
    logger.info(
        f"over {ranks.size} ranks a small model equals the whole one with eager attention to within {error:.1e}"
    )


def _save(model: PreTrainedModel, folder: Path) -> None:
    """What `save_pretrained` writes; that writes nothing on any rank but the first."""
    (folder / "config.json").write_text(model.config.to_json_string(use_diff=False))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

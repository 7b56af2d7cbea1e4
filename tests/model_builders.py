"""Tiny random models for the tests of the paged forward and of loading."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig

from specmesh.model.attention import ATTENTION_NAME
from specmesh.model.fused import fuse
from specmesh.model.paged import PagedModel

VOCABULARY = 101
MAX_CONTEXT = 640


def tiny_config(**changes: object) -> LlamaConfig:
    """Grouped heads, an odd vocabulary, wide initial weights: no two logits tie."""
    settings: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_CONTEXT,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**{**settings, **changes})


def plain_model(config: PretrainedConfig | None = None, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(config or tiny_config()).train(False).requires_grad_(False)


def paged_twin(
    plain: LlamaForCausalLM,
    *,
    dtype: torch.dtype = torch.float32,
    num_blocks: int = 64,
    device: str = "cpu",
    compiled: bool = False,
    fused: bool = False,
) -> PagedModel:
    """The same weights behind the paged cache; `compiled`: by the Triton kernels, on a CPU interpreted ones; `fused`:
    its layers too.
    """
    config = LlamaConfig.from_dict(plain.config.to_dict())
    config._attn_implementation = ATTENTION_NAME
    module = LlamaForCausalLM(config)
    module.load_state_dict(plain.state_dict())
    paged = PagedModel(module.to(device, dtype), device=device, dtype=dtype, vocabulary_size=plain.config.vocab_size)
    paged.compiled = compiled
    if compiled:
        paged.independent_rows = False
    if fused:
        fuse(paged.module)
    paged.allocate_cache(num_blocks)
    return paged


def random_ids(length: int, seed: int) -> list[int]:
    return torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def plain_logits(plain: LlamaForCausalLM, token_ids: Sequence[int]) -> torch.Tensor:
    return plain(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]


def tiny_tokenizer() -> Tokenizer:
    """One piece per id; the last two are the added tokens <s> and </s>."""
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCABULARY - 2)}, unk_token="w0"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def save_model(folder: Path, model: LlamaForCausalLM, *, template: str = "{{ messages }}") -> Path:
    """A folder as `load_model` takes it."""
    model.save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder

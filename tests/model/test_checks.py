"""What is refused at start, and what is accepted, by small configurations of many architectures."""

from typing import Any

import pytest
import torch
from model_builders import paged_twin, plain_model, tiny_config
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    StableLmConfig,
)

from specmesh.model.checks import check_architecture, check_rows_independent
from specmesh.model.errors import UnsupportedModel

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 200,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
NEOX = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
WINDOWED_QWEN = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}

ACCEPTED = {
    "llama": LlamaConfig(**SIZES),
    "llama-3": LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "phi": PhiConfig(**SIZES),
    "smollm3": SmolLM3Config(**SIZES),
    "gemma": GemmaConfig(**SIZES, head_dim=32),
    "granite": GraniteConfig(**SIZES),
    "olmo2": Olmo2Config(**SIZES),
    "cohere": CohereConfig(**SIZES),
    "gpt-neox": GPTNeoXConfig(**NEOX),
    "mixtral": MixtralConfig(**SIZES, sliding_window=None),
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
REFUSED = {
    "gemma-2": (Gemma2Config(**SIZES, head_dim=32), "sliding_window, softcap"),
    "gemma-3": (Gemma3TextConfig(**SIZES, head_dim=32), "sliding_window"),
    "windowed mistral": (MistralConfig(**SIZES, sliding_window=64), "sliding_window"),
    "window in the last layer": (Qwen2Config(**SIZES, **WINDOWED_QWEN), "sliding_window"),
    "gpt-oss": (GptOssConfig(**SIZES, head_dim=32, num_local_experts=4), "s_aux"),
    "bloom": (BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=200), "how long a context"),
    "falcon": (FalconConfig(hidden_size=64, num_attention_heads=4, alibi=True, vocab_size=200), "another attention"),
    "mamba": (MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=200), "no attention heads"),
    "stablelm": (StableLmConfig(**SIZES), "does not get the keyword arguments"),
    "longrope": (Phi3Config(**SIZES, rope_parameters=LONG_ROPE), "changes with the context"),
    "dynamic rope": (LlamaConfig(**SIZES, rope_parameters=DYNAMIC_ROPE), "changes with the context"),
    # Its chunks are a mask only: no keyword gives them away, the comparison does.
    "llama-4": (Llama4TextConfig(**SIZES, head_dim=16, num_local_experts=2), "differs from the model's own"),
}


@pytest.mark.parametrize("config", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_models_with_plain_causal_attention_equal_eager(config: PretrainedConfig) -> None:
    check_architecture(config)


@pytest.mark.parametrize(("config", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_models_that_would_be_served_wrong_are_refused_with_the_reason(config: PretrainedConfig, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        check_architecture(config)


class ScaledConfig(LlamaConfig):
    """Of `ScaledForCausalLM`."""

    model_type = "specmesh_scaled"


class ScaledForCausalLM(LlamaForCausalLM):
    """A Llama with a positional bias that it adds to the mask, so the attention interface cannot know of it."""

    config_class = ScaledConfig

    def __init__(self, config: ScaledConfig) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.register_forward_pre_hook(self._shift, with_kwargs=True)

    def _shift(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask: Tensor | None = kwargs.get("attention_mask")
        if mask is not None:
            distance = torch.arange(mask.shape[-1], dtype=mask.dtype)
            kwargs["attention_mask"] = mask + 0.5 * distance
        return args, kwargs


AutoModelForCausalLM.register(ScaledConfig, ScaledForCausalLM)


def test_a_bias_that_lives_in_the_mask_alone_is_found() -> None:
    with pytest.raises(UnsupportedModel, match="differs from the model's own"):
        check_architecture(ScaledConfig(**SIZES))


def test_the_checks_leave_torchs_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check_architecture(LlamaConfig(**SIZES))
    assert torch.equal(torch.rand(2), expected)


def test_rows_are_independent_in_float32_on_this_machine() -> None:
    assert check_rows_independent(paged_twin(plain_model(tiny_config())))


def test_rows_that_depend_on_their_neighbours_are_found() -> None:
    model = paged_twin(plain_model(tiny_config()))
    model.module.model.norm.register_forward_hook(lambda module, args, output: output * (1 + 1e-4 * output.shape[1]))
    assert not check_rows_independent(model)

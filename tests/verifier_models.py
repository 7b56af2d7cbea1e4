"""A tiny random model in two forms: plain transformers, and behind the paged cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specmesh.model.attention import ATTENTION_NAME
from specmesh.model.paged import PagedModel

VOCABULARY = 97


@dataclass(frozen=True)
class TinyModel:
    """The same float32 weights twice."""

    plain: LlamaForCausalLM
    paged: PagedModel

    def greedy(self, prompt: Sequence[int], num_tokens: int, stop_ids: Sequence[int] = ()) -> list[int]:
        """What transformers' own `generate` emits, the stop token included."""
        output = self.plain.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=list(stop_ids) or None,
            pad_token_id=0,
        )
        ids: list[int] = output[0, len(prompt) :].tolist()
        return ids


def tiny_model(seed: int = 0, *, nan_token: int | None = None, max_context_tokens: int = 256) -> TinyModel:
    """Weights far enough from each other that no two logits tie. `nan_token`: an id whose embedding is NaN."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_context_tokens,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    plain = LlamaForCausalLM(config).eval()
    if nan_token is not None:
        plain.model.embed_tokens.weight.data[nan_token] = torch.nan
    paged_config = LlamaConfig.from_dict(config.to_dict())
    paged_config._attn_implementation = ATTENTION_NAME
    module = LlamaForCausalLM(paged_config)
    module.load_state_dict(plain.state_dict())
    paged = PagedModel(module, device="cpu", dtype=torch.float32, vocabulary_size=VOCABULARY)
    return TinyModel(plain, paged)

"""A tiny random model in two forms: plain transformers, and behind the paged cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from model_builders import VOCABULARY, paged_twin, plain_model
from transformers import LlamaForCausalLM

from specmesh.model.paged import PagedModel

__all__ = ["VOCABULARY", "TinyModel", "tiny_model"]


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


def tiny_model(seed: int = 0, *, nan_token: int | None = None, device: str = "cpu") -> TinyModel:
    """`nan_token`: an id whose embedding is NaN. On a GPU with compiled kernels and fused layers, paged alone."""
    plain = plain_model(seed=seed)
    if nan_token is not None:
        plain.model.embed_tokens.weight.data[nan_token] = torch.nan
    compiled = device != "cpu"
    return TinyModel(plain, paged_twin(plain, device=device, compiled=compiled, fused=compiled))

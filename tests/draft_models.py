"""A tiny random causal language model as a draft."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specmesh.draft.drafter import DrafterInfo
from specmesh.draft.hf import HfDrafter
from specmesh.model.paged import PagedModel
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import decode_row

VOCABULARY = 61


def tiny_module(*, head_width: int = 64, seed: int = 5, max_position_embeddings: int = 512) -> LlamaForCausalLM:
    """Two layers, float32; `head_width` - 61 columns are padding."""
    config = LlamaConfig(
        vocab_size=head_width,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_position_embeddings,
        attn_implementation="specmesh_paged",
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


def tiny_model(*, token_map: Tensor | None = None, loud_padding: bool = False, **more: int) -> PagedModel:
    """The module over a paged cache; with `token_map`, a head of those ids only.

    With `loud_padding` the head's columns beyond the vocabulary have the largest logits.
    """
    module = tiny_module(**more)
    if loud_padding:
        with torch.no_grad():
            module.lm_head.weight[VOCABULARY:] = 50 * module.lm_head.weight[:3]
    if token_map is not None:
        weight = module.lm_head.weight[token_map].clone()
        module.lm_head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        module.lm_head.weight = torch.nn.Parameter(weight)
    return PagedModel(module, device="cpu", dtype=torch.float32, vocabulary_size=VOCABULARY, token_map=token_map)


def tiny_drafter(
    model: PagedModel | None = None,
    *,
    num_blocks: int = 64,
    chunk_tokens: int = 16,
    eos_token_ids: frozenset[int] = frozenset(),
    context_weights: Sequence[float] = (),
) -> HfDrafter:
    """A drafter over it."""
    model = model or tiny_model()
    info = DrafterInfo(
        kind="hf",
        name="tiny",
        model_digest="tiny",
        max_context_tokens=model.max_context_tokens,
        vocabulary_size=VOCABULARY,
        eos_token_ids=eos_token_ids,
    )
    return HfDrafter(
        model,
        info,
        kv_memory_bytes=num_blocks * model.bytes_per_block,
        chunk_tokens=chunk_tokens,
        context_weights=context_weights,
    )


def dense(row: bytes) -> np.ndarray:
    """A row as probabilities of the whole vocabulary."""
    ids, weights = decode_row(row)
    full = np.zeros(VOCABULARY)
    full[ids] = weights / ROW_TOTAL
    return full

"""A draft: some of the target's layers, its embedding, and an output head over part of its vocabulary.

The embedding E is the target's own and stays as it is. The head's rows are the target's, remapped and corrected at low
rank, ``head = E[token_ids] @ mix + rows @ basis``: a fifth of the size of free rows. Trained are the layers, the last
norm, mix, rows and basis.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel


class DraftModel(nn.Module):
    """target: a causal LM of transformers. layers: of the target's, to begin with. token_ids: [W] int64, ascending."""

    token_ids: Tensor
    head_embedding: Tensor

    def __init__(self, target: PreTrainedModel, layers: Sequence[int], token_ids: Tensor, *, rank: int) -> None:
        super().__init__()
        embedding, output = (
            weight.detach().float() for weight in (_weight(target, "input"), _weight(target, "output"))
        )
        width = embedding.shape[1]
        self.config = shallow_config(target.config, layers)
        self.decoder = _decoder_of(target, self.config, layers)
        self.decoder.set_input_embeddings(nn.Embedding.from_pretrained(embedding, freeze=True))
        self.register_buffer("token_ids", token_ids)
        self.register_buffer("head_embedding", output[token_ids], persistent=False)
        self.mix = nn.Parameter(torch.eye(width))
        self.rows = nn.Parameter(torch.zeros(len(token_ids), rank))
        self.basis = nn.Parameter(torch.randn(rank, width, generator=torch.Generator().manual_seed(0)) * width**-0.5)

    def head(self) -> Tensor:
        """The output head [W, width]."""
        return self.head_embedding @ self.mix + self.rows @ self.basis

    def forward(self, token_ids: Tensor) -> Tensor:
        """Logits [B, L, W] over `token_ids` of the head for tokens [B, L]."""
        hidden = self.decoder(input_ids=token_ids, use_cache=False).last_hidden_state
        return nn.functional.linear(hidden, self.head().to(hidden.dtype))

    def weights(self) -> dict[str, Tensor]:
        """What must be stored: everything but the embedding, by the names that `specmesh.model.distilled` reads."""
        layers = {name: t for name, t in self.decoder.state_dict().items() if not name.startswith("embed_tokens.")}
        head = {"head.mix": self.mix, "head.rows": self.rows, "head.basis": self.basis, "token_ids": self.token_ids}
        return {name: tensor.detach() for name, tensor in {**layers, **head}.items()}

    def with_weights(self, tensors: Mapping[str, Tensor]) -> "DraftModel":
        """A copy with what `weights` gave and `dequantise` gave back."""
        other = copy.deepcopy(self)
        own = {**other.decoder.state_dict(), "head.mix": other.mix, "head.rows": other.rows, "head.basis": other.basis}
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name != "token_ids":
                    own[name].copy_(tensor)
        return other


def shallow_config(config: PretrainedConfig, layers: Sequence[int]) -> PretrainedConfig:
    """The target's configuration with fewer layers."""
    shallow = copy.deepcopy(config)
    shallow.num_hidden_layers = len(layers)
    if getattr(shallow, "layer_types", None) is not None:
        shallow.layer_types = [config.layer_types[layer] for layer in layers]
    return shallow


def _decoder_of(target: PreTrainedModel, config: PretrainedConfig, layers: Sequence[int]) -> PreTrainedModel:
    """The decoder of a model of `config`, in float32, with the chosen layers' weights."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    decoder = model.get_decoder()
    wanted = {}
    source = target.get_decoder().state_dict()
    for name in decoder.state_dict():
        parts = name.split(".")
        if parts[0] == "layers":
            parts[1] = str(layers[int(parts[1])])
        wanted[name] = source[".".join(parts)].float()
    decoder.load_state_dict(wanted)
    chosen: PreTrainedModel = decoder
    return chosen


def _weight(target: PreTrainedModel, side: str) -> Tensor:
    """[V, width]: the target's `input` or `output` embedding."""
    module = target.get_input_embeddings() if side == "input" else target.get_output_embeddings()
    return cast(Tensor, module.weight)


def choose_tokens(shares: Tensor, size: int, always: Sequence[int]) -> Tensor:
    """At most `size` token ids, ascending: those with the largest positive `shares` [V], and `always`."""
    ranked = shares.double().clone()
    ranked[list(always)] = float("inf")
    ids = ranked.topk(min(size, int((ranked > 0).sum()))).indices
    return ids.sort().values

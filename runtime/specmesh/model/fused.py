"""Decoder layers of known classes in few launches: norms, rotation, cache writes and gates between merged products.

The layers are swapped after loading; the model's own code stays as it is and calls them as before. What stands between
two layers is a `Stream` instead of one tensor: so the norm that opens a layer is computed where the layer before ends.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from specmesh.model.attention import CompiledPlan, PagedCache
from specmesh.model.errors import UnsupportedModel
from specmesh.model.products import FewRowsLinear, product_of

KNOWN: dict[type[nn.Module], type[nn.Module]] = {
    modeling_llama.LlamaDecoderLayer: modeling_llama.LlamaRMSNorm,
    modeling_mistral.MistralDecoderLayer: modeling_mistral.MistralRMSNorm,
    modeling_qwen2.Qwen2DecoderLayer: modeling_qwen2.Qwen2RMSNorm,
    modeling_qwen3.Qwen3DecoderLayer: modeling_qwen3.Qwen3RMSNorm,
}
"""Classes of layers whose order of work `FusedLayer` follows, and of their norms."""


class Stream(NamedTuple):
    """What goes from layer to layer: the sum so far [N, C], and its norm with the next layer's weights."""

    residual: Tensor
    normed: Tensor


Norm = tuple[Tensor, float]
"""Weight [C] and epsilon."""


def fusing_problem(module: PreTrainedModel) -> str | None:
    """Why the layers of this model cannot be swapped; None: they can."""
    if getattr(module.config, "quantization_config", None) is not None:
        return "fused layers have not been proved over quantised products"
    base = module.base_model
    layers, final = getattr(base, "layers", None), getattr(base, "norm", None)
    if not isinstance(layers, nn.ModuleList) or not layers or final is None:
        return "its layers are not where they are looked for"
    kinds = {type(layer) for layer in layers}
    kind = next(iter(kinds))
    if len(kinds) > 1 or kind not in KNOWN:
        return f"no fused form of {kind.__name__}"
    norms = [final, *(norm for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm))]
    if any(type(norm) is not KNOWN[kind] for norm in norms):
        return "its norms are of another class than its layers"
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
        return "its layers are hooked"
    if module.config.get_text_config().hidden_act not in ("silu", "swish"):
        return f"no fused form of the activation {module.config.get_text_config().hidden_act}"
    return None


def fuse(module: PreTrainedModel) -> None:
    """Swap the layers, the final norm and the head of a model, in place. Raises `UnsupportedModel` where it cannot."""
    if (problem := fusing_problem(module)) is not None:
        raise UnsupportedModel(problem)
    base: Any = module.base_model
    layers = list(base.layers)
    norms = [norm_of(layer.input_layernorm) for layer in layers] + [norm_of(base.norm)]
    ops = fused_ops()
    base.layers = nn.ModuleList(
        FusedLayer(layer, norms[index], norms[index + 1], ops) for index, layer in enumerate(layers)
    )
    base.norm = TakeNormed()
    head = module.get_output_embeddings()
    if type(head) is nn.Linear and not head._forward_hooks:
        module.set_output_embeddings(FewRowsLinear(head))


def norm_of(module: nn.Module) -> Norm:
    """Of one of the classes in `KNOWN`."""
    norm: Any = module
    return norm.weight.data, float(norm.variance_epsilon)


class Ops(NamedTuple):
    """What runs between products."""

    add_norm: Callable[..., tuple[Tensor, Tensor]]
    rotary_write: Callable[..., Tensor]
    silu_gated: Callable[..., Tensor]


def fused_ops() -> Ops:
    """The Triton kernels. Imported here: Triton is not everywhere, and only who has it swaps layers."""
    from specmesh.kernels.compiled.add_norm import add_norm
    from specmesh.kernels.compiled.gated import silu_gated
    from specmesh.kernels.compiled.rotary_write import rotary_write

    return Ops(add_norm, rotary_write, silu_gated)


class FusedLayer(nn.Module):
    """One decoder layer: of `layer`, whose weights it takes, and of the norm that the next layer begins with."""

    def __init__(self, layer: nn.Module, first_norm: Norm, next_norm: Norm, ops: Ops) -> None:
        super().__init__()
        attention: Any = layer.self_attn
        mlp: Any = layer.mlp
        inner_norm: Any = layer.post_attention_layernorm
        self._layer = layer
        self._index: int = attention.layer_idx
        self._scale: float = attention.scaling
        self._first_norm, self._next_norm = first_norm, next_norm
        self._inner_norm = norm_of(inner_norm)
        self._head_norms = None
        if hasattr(attention, "q_norm"):
            (query, epsilon), (key, _) = norm_of(attention.q_norm), norm_of(attention.k_norm)
            self._head_norms = (query, key, epsilon)
        self._heads = product_of([attention.q_proj, attention.k_proj, attention.v_proj])
        self._attended = product_of([attention.o_proj])
        self._gate = product_of([mlp.gate_proj, mlp.up_proj])
        self._down = product_of([mlp.down_proj])
        self._ops = ops

    def forward(
        self,
        hidden: Tensor | Stream,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        kv: PagedCache,
        plan: CompiledPlan,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        **unknown: object,
    ) -> Stream:
        """As the layer that it replaces; `hidden` [1, N, C] before the first one.

        Raises `UnsupportedModel` for a keyword that the layer's own attention would refuse.
        """
        asked = sorted(name for name, given in unknown.items() if given is not None)
        if asked or attention_mask is not None:
            raise UnsupportedModel(f"its layers are given more than a fused one takes: {', '.join(asked) or 'a mask'}")
        ops = self._ops
        stream = hidden if isinstance(hidden, Stream) else Stream(*ops.add_norm(None, hidden[0], *self._first_norm))
        cosine, sine = (angles[0] for angles in position_embeddings)
        cache = kv.keys[self._index], kv.values[self._index]
        query = ops.rotary_write(self._heads(stream.normed), cosine, sine, plan.slots, cache, self._head_norms)
        attended = plan.read(query, cache, self._scale).flatten(1)
        stream = Stream(*ops.add_norm(self._attended(attended), stream.residual, *self._inner_norm))
        inner = ops.silu_gated(self._gate(stream.normed), attended.dtype)
        return Stream(*ops.add_norm(self._down(inner), stream.residual, *self._next_norm))


class TakeNormed(nn.Module):
    """In place of the final norm, which the last layer has computed."""

    def forward(self, hidden: Stream) -> Tensor:
        """[1, N, C]."""
        return hidden.normed[None]

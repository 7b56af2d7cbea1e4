"""The attention that a transformers model calls in place of its own: it writes the cache and reads it, in one op."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from specmesh.kernels.reference.kv_write import kv_write
from specmesh.kernels.reference.paged_attention import TileGroup, paged_attention
from specmesh.model.errors import UnsupportedModel

ATTENTION_NAME = "specmesh_paged"


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys [layers, blocks, 16, K, D] and values [layers, blocks, 16, K, Dv] of all sessions."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where one ragged forward reads and writes; the same for all layers.

    `slots` [S] int64: see `kv_write`; `tiles`, `scratch`: see `attend`; `order` [N] int64: see `paged_attention`.
    """

    slots: Tensor
    tiles: list[Tensor]
    scratch: list[Tensor]
    order: Tensor
    independent_rows: bool

    def attend(self, query: Tensor, key: Tensor, value: Tensor, cache: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """Write and attend; `cache` is the layer's keys and values."""
        call = attend_op if torch.compiler.is_compiling() else attend
        return call(
            query, key, value, *cache, self.slots, self.order, self.tiles, self.scratch, scale, self.independent_rows
        )


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """The same for the Triton kernels.

    `slots` [N] int64, `tiles` [T, 4] and `tables` [M] int32: see `compiled.paged_attention`; `queries` per tile,
    `splits` of a context.
    """

    slots: Tensor
    tiles: Tensor
    tables: Tensor
    queries: int
    splits: int

    def attend(self, query: Tensor, key: Tensor, value: Tensor, cache: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """Write and attend; `cache` is the layer's keys and values."""
        call = attend_compiled_op if torch.compiler.is_compiling() else attend_compiled
        return call(query, key, value, *cache, self.slots, self.tiles, self.tables, scale, self.queries, self.splits)

    def read(self, query: Tensor, cache: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """Attend [N, H, D] over what is written already: [N, H, Dv]."""
        from specmesh.kernels.compiled import paged_attention as compiled_attention

        tiling = compiled_attention.Tiling(self.queries, self.splits)
        result: Tensor = compiled_attention.paged_attention(query, *cache, self.tiles, self.tables, scale, tiling)
        return result


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One layer's attention."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int


@dataclass(slots=True)
class ShapeProbe:
    """Stands in for the cache in a forward that only learns the attention calls; their results are zeros."""

    calls: list[tuple[int, AttentionShape]] = field(default_factory=list)

    def record(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Note the call; the answer has the right shape, [1, N, H, Dv]."""
        shape = AttentionShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        self.calls.append((layer, shape))
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    order: Tensor,
    tiles: Sequence[Tensor],
    scratch: Sequence[Tensor],
    scale: float,
    independent_rows: bool,
) -> Tensor:
    """Write one layer's keys and values and attend: [N, H, D] and [N, K, D] to [N, H, Dv].

    `tiles` are the first three tensors of each `TileGroup`, one group after the other, `scratch` the other two.
    """
    kv_write(key, value, key_cache, value_cache, slots)
    groups = tile_groups(tiles, scratch)
    return paged_attention(query, key_cache, value_cache, groups, order, scale, independent_rows)


def tile_groups(tiles: Sequence[Tensor], scratch: Sequence[Tensor]) -> list[TileGroup]:
    """Groups from the flat lists that an op can take."""
    return [TileGroup(*tiles[3 * at : 3 * at + 3], *scratch[2 * at : 2 * at + 2]) for at in range(len(tiles) // 3)]


attend_op = torch.library.custom_op(
    "specmesh::paged_attention", attend, mutates_args=("key_cache", "value_cache", "scratch")
)
"""`attend` as one opaque node of a traced or captured graph."""


def attend_compiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    tiles: Tensor,
    tables: Tensor,
    scale: float,
    queries: int,
    splits: int,
) -> Tensor:
    """`attend` by the Triton kernels; see `CompiledPlan`."""
    # Imported here: Triton is not everywhere, and only who has it makes such a plan.
    from specmesh.kernels.compiled import kv_write as compiled_write
    from specmesh.kernels.compiled import paged_attention as compiled_attention

    compiled_write.kv_write(key, value, key_cache, value_cache, slots)
    tiling = compiled_attention.Tiling(queries, splits)
    result: Tensor = compiled_attention.paged_attention(query, key_cache, value_cache, tiles, tables, scale, tiling)
    return result


attend_compiled_op = torch.library.custom_op(
    "specmesh::compiled_attention", attend_compiled, mutates_args=("key_cache", "value_cache")
)
"""`attend_compiled` as one opaque node of a traced or captured graph."""


@attend_op.register_fake
@attend_compiled_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1], value.shape[2])


def paged_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_ids: Tensor | None = None,
    use_cache: bool | None = None,
    output_router_logits: bool | None = None,
    kv: PagedCache | ShapeProbe | None = None,
    plan: AttentionPlan | CompiledPlan | None = None,
    **unknown: object,
) -> tuple[Tensor, None]:
    """The function transformers calls: `query` [1, H, N, D], `key` and `value` [1, K, N, D]; returns [1, N, H, Dv].

    Raises `UnsupportedModel` when the model asks for anything else than plain causal attention.
    """
    asked = sorted(name for name, given in unknown.items() if given is not None)
    if asked or attention_mask is not None or dropout or is_causal is False:
        raise UnsupportedModel(f"its attention asks for more than causal softmax: {', '.join(asked) or 'a mask'}")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModel("its attention layers have no layer_idx")
    if isinstance(kv, ShapeProbe):
        return kv.record(layer, query, key, value), None
    if kv is None or plan is None:
        raise UnsupportedModel("its attention does not get the keyword arguments of the model call")
    result = plan.attend(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        (kv.keys[layer], kv.values[layer]),
        query.shape[3] ** -0.5 if scaling is None else scaling,
    )
    return result[None], None


AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)

"""A transformers causal language model over a paged cache: many sessions, one flat ragged row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specmesh.kernels.reference.paged_attention import EXACT_TILE_KEYS, EXACT_TILE_QUERIES
from specmesh.model.attention import (
    ATTENTION_NAME,
    AttentionPlan,
    AttentionShape,
    CompiledPlan,
    PagedCache,
    ShapeProbe,
)
from specmesh.model.blocks import BLOCK_TOKENS, blocks_for
from specmesh.model.errors import UnsupportedModel
from specmesh.model.graphs import Record, TickGraphs, recorder
from specmesh.model.packing import can_pack, pack_linears
from specmesh.model.plan import FAST_TILE_QUERIES, PlanShape, Span, make_plan, slots_of, split_spans, wanted_rows
from specmesh.model.tiles import can_compile, make_compiled_plan

__all__ = ["PagedModel", "Span"]

MIN_ROWS = 16
MAX_EXACT_ROWS = 256
MAX_ROWS = 1024


class PagedModel:
    """The forward of a target or a draft.

    `vocabulary_size`: real ids; the head may be wider (`head_width` columns). `token_map` [head_width] int64,
    ascending: the ids of a head over a subset of the vocabulary. With `independent_rows` (float32 on CPU) a row's bits
    do not depend on what else is in the forward; with `compiled` attention and cache are the Triton kernels'. Not
    thread-safe: one engine thread owns it.
    Raises `UnsupportedModel` where the model's attention is not plain causal attention called once per layer.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        *,
        device: str | torch.device,
        dtype: torch.dtype,
        vocabulary_size: int,
        token_map: Tensor | None = None,
    ) -> None:
        self.module = module.requires_grad_(False).train(False)
        if can_pack(torch.device(device), dtype):
            pack_linears(module)
        self.device = torch.device(device)
        self.dtype = dtype
        self.vocabulary_size = vocabulary_size
        self.token_map = token_map
        self.max_context_tokens = _context_limit(module)
        self.independent_rows = dtype == torch.float32 and self.device.type == "cpu"
        self.compiled = can_compile(self.device)
        self.attention, self.num_layers, self.head_width = self._probe()
        self._cache: PagedCache | None = None
        self._plan_shape: PlanShape | None = None
        self._graphs: TickGraphs | None = None

    @property
    def bytes_per_block(self) -> int:
        """Bytes of 16 tokens of one session, all layers."""
        per_token = self.attention.num_kv_heads * (self.attention.key_size + self.attention.value_size)
        return self.num_layers * BLOCK_TOKENS * per_token * self.dtype.itemsize

    def allocate_cache(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks, 0 to num_blocks - 1; what was cached is lost."""
        attention = self.attention
        # One block more than sessions may hold: it stays zero and pads block tables.
        lead = (self.num_layers, num_blocks + 1, BLOCK_TOKENS, attention.num_kv_heads)
        keys = torch.zeros(*lead, attention.key_size, dtype=self.dtype, device=self.device)
        values = torch.zeros(*lead, attention.value_size, dtype=self.dtype, device=self.device)
        self._cache = PagedCache(keys, values)
        self._graphs = None
        self._plan_shape = PlanShape(
            attention=attention,
            dtype=self.dtype,
            device=self.device,
            zero_block=num_blocks,
            tile_queries=EXACT_TILE_QUERIES if self.independent_rows else FAST_TILE_QUERIES,
            tile_blocks=EXACT_TILE_KEYS // BLOCK_TOKENS if self.independent_rows else 1,
            independent_rows=self.independent_rows,
        )

    @torch.inference_mode()
    def copy_block(self, source: int, target: int) -> None:
        """Make the block `target` hold what `source` holds, in all layers. Raises RuntimeError without a cache."""
        if self._cache is None:
            raise RuntimeError("allocate_cache comes before copy_block")
        for cache in (self._cache.keys, self._cache.values):
            cache[:, target].copy_(cache[:, source])

    @torch.inference_mode()
    def warm_up(self, max_rows: int, max_chunk: int = 0, record: Record | None = None) -> None:
        """Record the forwards of ticks, where the kernels are compiled; needs a cache. Takes seconds.

        `max_rows`: tokens of blocks to verify in one tick; `max_chunk`: of prompts beside them. `record`: how, CUDA
        graphs unless given.
        """
        if not self.compiled or self._cache is None:
            return
        self._graphs = TickGraphs(
            self.module,
            self._cache,
            self.attention,
            max_rows=max_rows,
            max_chunk=min(max_chunk, max(MAX_ROWS - max_rows, 0)),
            max_context=min(self.max_context_tokens, self._cache.keys.shape[1] * BLOCK_TOKENS),
            record=recorder() if record is None else record,
        )
        self._graphs.record_all()

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span]) -> Tensor:
        """Feed every span; returns raw logits [R, head_width] of the rows asked for, spans in order.

        Writes the keys and values of all tokens fed. Raises ValueError for a span that its table does not cover, and
        RuntimeError without a cache.
        """
        for span in spans:
            if span.end > len(span.block_table) * BLOCK_TOKENS or not 0 <= span.first_row <= len(span.token_ids):
                raise ValueError("span: its block table does not cover it, or first_row is outside")
        batches = split_spans(spans, MAX_EXACT_ROWS if self.independent_rows else MAX_ROWS)
        logits = [self._forward(batch) for batch in batches if batch]
        if not logits:
            return torch.empty(0, self.head_width, dtype=self.dtype, device=self.device)
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _forward(self, spans: Sequence[Span]) -> Tensor:
        if self._cache is None:
            raise RuntimeError("allocate_cache comes before forward")
        if not self.compiled:  # whose kernels do not read behind a span's end
            self._clear_tails(self._cache, spans)
        if self._graphs is not None and (bucket := self._graphs.bucket_of(spans)) is not None:
            return self._graphs.run(spans, bucket)
        output = self.module(**self._inputs_of(spans))
        asked: Tensor = output.logits[0, : sum(len(span.token_ids) - span.first_row for span in spans)]
        return asked

    def _inputs_of(self, spans: Sequence[Span]) -> dict[str, Any]:
        """What the module is called with for one ragged forward over spans that fit one. Needs a cache."""
        if self._cache is None or self._plan_shape is None:
            raise RuntimeError("allocate_cache comes before forward")
        tokens = [token for span in spans for token in span.token_ids]
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        padded = self._padded(len(tokens))
        ids = torch.zeros(1, padded, dtype=torch.int64)
        ids[0, : len(tokens)] = torch.tensor(tokens)
        position_ids = torch.zeros(1, padded, dtype=torch.int64)
        position_ids[0, : len(tokens)] = torch.from_numpy(positions)
        rows = wanted_rows(spans)
        keep = np.zeros(self._padded(len(rows)) if len(rows) else 0, np.int64)
        keep[: len(rows)] = rows
        return {
            "input_ids": ids.to(self.device),
            "position_ids": position_ids.to(self.device),
            "use_cache": False,
            "logits_to_keep": torch.from_numpy(keep).to(self.device),
            "kv": self._cache,
            "plan": self._plan(spans, padded, self._plan_shape),
        }

    def _plan(self, spans: Sequence[Span], num_rows: int, shape: PlanShape) -> AttentionPlan | CompiledPlan:
        if self.compiled:
            return make_compiled_plan(spans, shape.attention, shape.device)
        return make_plan(spans, num_rows, shape)

    def _padded(self, count: int) -> int:
        """Rows of a product: a multiple of 16 where rows must be independent."""
        return -(-count // MIN_ROWS) * MIN_ROWS if self.independent_rows else count

    def _clear_tails(self, cache: PagedCache, spans: Sequence[Span]) -> None:
        """Zero what follows each span in its last block.

        It was written by rejected tokens or by another session, and may be NaN: a masked key weighs 0, and 0 * NaN
        is NaN.
        """
        tails = [slots_of(span.block_table, span.end, blocks_for(span.end) * BLOCK_TOKENS) for span in spans]
        slots = torch.from_numpy(np.concatenate(tails)).to(self.device)
        if slots.numel():
            cache.keys.flatten(1, 2).index_fill_(1, slots, 0)
            cache.values.flatten(1, 2).index_fill_(1, slots, 0)

    @torch.inference_mode()
    def _probe(self) -> tuple[AttentionShape, int, int]:
        """The attention's shape, the number of layers and the width of the head, from a forward of one token."""
        if self.module.config._attn_implementation != ATTENTION_NAME:
            raise UnsupportedModel(f"it keeps its own attention ({self.module.config._attn_implementation})")
        probe = ShapeProbe()
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        output = self.module(
            input_ids=zero, position_ids=zero, use_cache=False, logits_to_keep=zero[0], kv=probe, plan=None
        )
        layers = [layer for layer, _ in probe.calls]
        if layers != list(range(self.module.config.num_hidden_layers)):
            raise UnsupportedModel("its attention is not called once per layer, in order")
        shapes = {shape for _, shape in probe.calls}
        if len(shapes) != 1:
            raise UnsupportedModel("its layers' attention differs in shape")
        return shapes.pop(), len(layers), int(output.logits.shape[-1])


def _context_limit(module: PreTrainedModel) -> int:
    limit = getattr(module.config, "max_position_embeddings", None)
    if not limit:
        raise UnsupportedModel("its configuration does not say how long a context may be")
    return int(limit)

"""Fast sampling from the target, thousands of rows at once.

Every row is at the same position, so there is no padding, no mask per row and no prefill: a row's prompts are *forced*
through the same decoding steps, and when the target ends an answer the row's next prompt is forced after it, as the
next turn of a chat. On CUDA a step is one graph, one graph for each length of the cache that is read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

_ATTENTION = "specmesh_training_decode"


@dataclass(frozen=True, slots=True)
class Scripts:
    """What each row is forced to say: prompts end to end.

    tokens: [B, S] int64. last_of_prompt: [B, S] bool, where the target takes over after the token. lengths: [B, 1].
    """

    tokens: Tensor
    last_of_prompt: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class Written:
    """tokens: [B, L] int64. by_target: [B, L] bool: sampled, not forced. valid: [B, L] bool: before the row ran out."""

    tokens: Tensor
    by_target: Tensor
    valid: Tensor


class _Cache:
    """Keys and values by layer, each [B, heads, L, head_dim], and the position that all rows are at."""

    def __init__(self, model: PreTrainedModel, num_rows: int, length: int) -> None:
        self._shape = (num_rows, length)
        self._dtype, self._device = model.dtype, model.device
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.position = torch.zeros(1, dtype=torch.long, device=self._device)
        self.slots = torch.arange(length, device=self._device)
        self.num_read = length

    def store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write one position; return the first `num_read` positions of the layer."""
        if layer not in self._layers:
            rows, length = self._shape
            shape = (rows, key.shape[1], length, key.shape[3])
            self._layers[layer] = tuple(torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in range(2))  # type: ignore[assignment]
        keys, values = self._layers[layer]
        keys.index_copy_(2, self.position, key)
        values.index_copy_(2, self.position, value)
        return keys[:, :, : self.num_read], values[:, :, : self.num_read]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    scaling: float,
    decode_cache: _Cache,
    **unused: object,
) -> tuple[Tensor, None]:
    """Grouped-query attention of one new position [B, heads, 1, head_dim] to the cache."""
    keys, values = decode_cache.store(int(module.layer_idx), key, value)  # type: ignore[arg-type]
    rows, heads, _, width = query.shape
    grouped = query.reshape(rows, keys.shape[1], -1, width) * scaling
    scores = (grouped @ keys.transpose(2, 3)).float()
    hidden = decode_cache.slots[: decode_cache.num_read] > decode_cache.position
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).to(values.dtype)
    return (weights @ values).reshape(rows, 1, heads, width), None


AttentionInterface.register(_ATTENTION, _attend)


class Writer:
    """Decodes rows of `length` tokens from a target.

    num_rows: B. temperatures: [B] float, 0 = greedy. end_ids: tokens that hand over to the row's next prompt.
    """

    def __init__(
        self, model: PreTrainedModel, *, num_rows: int, length: int, temperatures: Tensor, end_ids: tuple[int, ...]
    ) -> None:
        model.set_attn_implementation(_ATTENTION)
        self._model = model
        self._length = length
        device = model.device
        self._cache = _Cache(model, num_rows, length)
        self._temperature = temperatures.to(device).clamp_min(1e-3)[:, None]
        self._end_ids = torch.tensor(end_ids, device=device)
        self._token = torch.zeros(num_rows, 1, dtype=torch.long, device=device)
        self._cursor = torch.zeros(num_rows, 1, dtype=torch.long, device=device)
        self._free = torch.zeros(num_rows, 1, dtype=torch.bool, device=device)
        self._tokens = torch.zeros(num_rows, length, dtype=torch.long, device=device)
        self._by_target = torch.zeros(num_rows, length, dtype=torch.bool, device=device)
        self._valid = torch.zeros(num_rows, length, dtype=torch.bool, device=device)
        self._script: Scripts | None = None
        self._graphs: dict[int, Callable[[], None]] = {}

    @torch.inference_mode()
    def write(self, scripts: Scripts) -> Written:
        """Follow the scripts and fill what they leave open. Results are on the target's device."""
        self._load(scripts)
        self._begin()
        for position in range(1, self._length):
            self._run(min(self._length, -(-position // 64) * 64))
        return Written(self._tokens.clone(), self._by_target.clone(), self._valid.clone())

    def _load(self, scripts: Scripts) -> None:
        device = self._token.device
        if self._script is None:
            self._script = Scripts(
                scripts.tokens.to(device), scripts.last_of_prompt.to(device), scripts.lengths.to(device)
            )
        else:
            self._script.tokens.copy_(scripts.tokens)
            self._script.last_of_prompt.copy_(scripts.last_of_prompt)
            self._script.lengths.copy_(scripts.lengths)

    def _begin(self) -> None:
        """The first token is forced."""
        script = self._current_script()
        self._cache.position.zero_()
        self._cursor.fill_(1)
        self._token.copy_(script.tokens[:, :1])
        self._free.copy_(script.last_of_prompt[:, :1])
        self._tokens[:, :1] = self._token
        self._by_target[:, 0] = False
        self._valid[:, 0] = True

    def _run(self, num_read: int) -> None:
        """One position further, attending to the first `num_read` slots of the cache."""
        if self._token.device.type != "cuda":
            self._cache.num_read = num_read
            self._step()
            return
        if num_read not in self._graphs:
            self._graphs[num_read] = self._capture(num_read)
        self._graphs[num_read]()

    def _step(self) -> None:
        logits = self._model(
            self._token,
            position_ids=self._cache.position.expand_as(self._token),
            use_cache=False,
            decode_cache=self._cache,
        ).logits[:, -1]
        noise = -torch.empty_like(logits, dtype=torch.float32).exponential_().log_()
        sampled = noise.add_(logits / self._temperature).argmax(-1, keepdim=True)
        self._advance(sampled)

    def _advance(self, sampled: Tensor) -> None:
        """Choose forced or sampled for each row, record it, and see who takes over."""
        script = self._current_script()
        left = self._cursor < script.lengths
        at = self._cursor.clamp_max(script.tokens.shape[1] - 1)
        valid = self._free | left
        token = torch.where(self._free, sampled, torch.where(left, script.tokens.gather(1, at), self._end_ids[:1]))
        ended = self._free & (token[:, :, None] == self._end_ids).any(-1)
        taken_over = ~self._free & left & script.last_of_prompt.gather(1, at)
        self._cache.position.add_(1)
        self._tokens.index_copy_(1, self._cache.position, token)
        self._by_target.index_copy_(1, self._cache.position, self._free)
        self._valid.index_copy_(1, self._cache.position, valid)
        self._cursor.add_((~self._free & left).long())
        self._free.copy_((self._free & ~ended) | taken_over)
        self._token.copy_(token)

    def _capture(self, num_read: int) -> Callable[[], None]:
        """A CUDA graph of one step. Capturing and warming up leave the state as it was."""
        self._cache.num_read = num_read
        state = [
            self._cache.position,
            self._token,
            self._cursor,
            self._free,
            self._tokens,
            self._by_target,
            self._valid,
        ]
        kept = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, before in zip(state, kept, strict=True):
            tensor.copy_(before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay

    def _current_script(self) -> Scripts:
        if self._script is None:
            raise RuntimeError("write() loads the scripts first")
        return self._script

"""A causal language model of transformers as a draft: one ragged forward per token for all sessions in flight.

Its KV cache is paged and soft: bounded by bytes, the least recently used sessions go first and are prefilled again from
their tokens when they come back. The head may cover a subset of the vocabulary (`token_map`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from specmesh.draft.caches import KvCaches
from specmesh.draft.context_voice import ContextVoice
from specmesh.draft.drafter import Advance, DrafterInfo, Turn
from specmesh.draft.feeding import Meal, plan_meals
from specmesh.draft.hf_settings import DISTILLED, HfSettings
from specmesh.draft.settings import parse_settings
from specmesh.draft.voice import Head, ModelVoice, Voice
from specmesh.kernels.ops import compile_draft_ahead
from specmesh.model.blocks import BLOCK_TOKENS
from specmesh.model.errors import UnsupportedModel
from specmesh.model.loading import LoadedModel, load_model
from specmesh.model.paged import Span
from specmesh.runtime.config import ConfigError
from specmesh.runtime.errors import Overloaded
from specmesh.runtime.types import DraftEndReason


class LanguageModel(Protocol):
    """What of `specmesh.model.paged.PagedModel` a draft needs."""

    vocabulary_size: int
    max_context_tokens: int
    token_map: Tensor | None

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one cache block."""
        ...

    def allocate_cache(self, num_blocks: int) -> None:
        """Make room."""
        ...

    def forward(self, spans: Sequence[Span]) -> Tensor:
        """Logits of the rows asked for, spans in order."""
        ...


class HfDrafter:
    """Kind `hf`."""

    inline = False

    def __init__(
        self,
        model: LanguageModel,
        info: DrafterInfo,
        *,
        kv_memory_bytes: int,
        chunk_tokens: int,
        context_weights: Sequence[float] = (),
    ) -> None:
        """A context is no longer than the memory holds. Raises `ConfigError` when that is not even one block.

        `context_weights`: how to mix the model's law with the session's own past; empty leaves it as it is.
        """
        num_blocks = kv_memory_bytes // model.bytes_per_block
        if num_blocks < 1:
            raise ConfigError(f"drafter.kv_memory_bytes: one block alone takes {model.bytes_per_block} bytes")
        model.allocate_cache(num_blocks)
        self._model = model
        self._chunk_tokens = chunk_tokens
        self.caches = KvCaches(num_blocks)
        head = Head(model.vocabulary_size, model.token_map)
        self._voice: Voice = ContextVoice(head, context_weights) if context_weights else ModelVoice(head)
        most = min(info.max_context_tokens, num_blocks * BLOCK_TOKENS)
        self.info = self._voice.info(replace(info, max_context_tokens=most))

    @torch.inference_mode()
    def advance(self, turns: Sequence[Turn]) -> list[Advance]:
        """One forward over what every session has not cached yet; one token for those that have caught up."""
        answers = [Advance(caught_up=False)] * len(turns)
        table: list[tuple[int, Meal, Span]] = []
        busy = {turn.session_id for turn in turns}
        for index, meal in enumerate(plan_meals(turns, self.caches.length, self._chunk_tokens)):
            if meal is None:
                continue
            span = self._span(meal, busy)
            if span is None:
                answers[index] = Advance(failure=Overloaded("the draft's cache memory is full"))
            else:
                table.append((index, meal, span))
        logits = self._model.forward([span for _, _, span in table if span.token_ids])
        for (index, _, _), answer in zip(table, self._answers([meal for _, meal, _ in table], logits), strict=True):
            answers[index] = answer
        return answers

    def truncate(self, session_id: int, length: int) -> None:
        """The session's tokens beyond `length` are no more."""
        self.caches.truncate(session_id, length)
        self._voice.truncate(session_id, length)

    def release(self, session_id: int) -> None:
        """Forget a session."""
        self.caches.release(session_id)
        self._voice.release(session_id)

    def _span(self, meal: Meal, busy: set[int]) -> Span | None:
        """The meal with its place in the cache; None when there is no room."""
        session_id = meal.turn.session_id
        cache = self.caches.reserve(session_id, meal.stop, busy)
        if cache is None:
            self.caches.release(session_id)
            return None
        cache.length = meal.stop
        tokens = meal.turn.tokens[meal.start : meal.stop]
        return Span(tokens, meal.start, tuple(cache.blocks), meal.first_row - meal.start)

    def _answers(self, meals: Sequence[Meal], logits: Tensor) -> list[Advance]:
        scores = iter(self._voice.scores(meals, logits))
        proposals = iter(self._voice.proposals(meals, logits))
        answers = []
        for meal in meals:
            cold = meal.start == 0
            if not meal.complete:
                answers.append(Advance(caught_up=False, cold=cold))
                continue
            proposal = next(proposals) if meal.turn.num_wanted else None
            end = None
            if meal.turn.num_wanted and proposal is None:
                # What is not finite may be in the cache by now; the next entry starts without it.
                end = DraftEndReason.NON_FINITE
                self.caches.release(meal.turn.session_id)
            of_delta = tuple(next(scores) for _ in range(_num_scored(meal.turn)))
            kept = () if proposal is None else (proposal,)
            answers.append(Advance(proposals=kept, end=end, scores=of_delta, cold=cold))
        return answers


def _num_scored(turn: Turn) -> int:
    return 0 if turn.score_from is None else turn.block_start - turn.score_from


def make(settings: Mapping[str, Any]) -> HfDrafter:
    """A drafter from a model on disk. Raises `ConfigError` naming the setting."""
    given = parse_settings(HfSettings, settings)
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    loaded = _load(given)
    model = loaded.model
    compile_draft_ahead(model.forward([]), vocabulary_size=model.vocabulary_size, token_map=model.token_map).finish()
    info = DrafterInfo(
        kind="hf",
        name=loaded.name,
        model_digest=loaded.model_digest,
        max_context_tokens=model.max_context_tokens,
        vocabulary_size=model.vocabulary_size,
        tokenizer_digest=loaded.tokenizer_digest,
        vocabulary_hashes=loaded.vocabulary_hashes,
        eos_token_ids=frozenset(loaded.tokenizer.eos_token_ids),
    )
    return HfDrafter(
        model,
        info,
        kv_memory_bytes=given.kv_memory_bytes,
        chunk_tokens=given.chunk_tokens,
        context_weights=_context_weights(given) if given.context else (),
    )


def _context_weights(given: HfSettings) -> Sequence[float]:
    """Those in a distilled draft's package. Raises `ConfigError` where there are none."""
    from specmesh.model.distilled import find_draft, read_about

    weights: Sequence[float] = read_about(find_draft(given.source.removeprefix(DISTILLED))).get("context_weights", ())
    if not weights:
        raise ConfigError(f"drafter.context: {given.source} has no context_weights")
    return weights


def _load(given: HfSettings) -> LoadedModel:
    try:
        if given.source.startswith(DISTILLED):
            from specmesh.model.distilled import load_distilled

            name = given.source.removeprefix(DISTILLED)
            return load_distilled(name, given.target_source, dtype=given.dtype, device=given.device)
        return load_model(given.source, dtype=given.dtype, device=given.device, quantization=given.quantization)
    except (ValueError, OSError, UnsupportedModel) as error:
        raise ConfigError(f"drafter.source: {given.source}: {error}") from error

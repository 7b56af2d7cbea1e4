"""The shipped drafts at work without the model they were distilled from.

A draft takes its embedding from its target. Here it gets a random one of the same shape, and the target is a random
head on the layers of the largest draft: of the real sizes, whole vocabulary included, near enough to that draft that
blocks are kept in part. The drafts say other things than in service; exactness must not depend on what they say.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specmesh.draft.admission import EngineLimits
from specmesh.draft.block import Ended, Event, Tokens
from specmesh.draft.drafter import DrafterInfo
from specmesh.draft.engine import DraftEngine, Stopping
from specmesh.draft.hf import HfDrafter
from specmesh.model.attention import ATTENTION_NAME
from specmesh.model.distilled import assemble, dequantise, find_draft, head_weight
from specmesh.model.paged import PagedModel
from specmesh.runtime.context import context_hash
from specmesh.runtime.types import DraftAsk, Rule, Sampling

NAMES = ("code", "prose", "general")
WITH_PAST = "general with past"
"""The nearest draft, mixed with what its session said before; its weights are this file's own."""
PAST_WEIGHTS = (8.0, 2.0, 1.0)
LAYERS_OF = "general"
VOCABULARY, WIDTH = 49_152, 576
NUM_BLOCKS = 256


@dataclass(frozen=True)
class StandIn:
    """A target, as transformers runs it and behind the paged cache, and the drafts."""

    plain: PreTrainedModel
    paged: PagedModel
    drafts: Mapping[str, "Drafts"]

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What transformers' own `generate` emits."""
        output = self.plain.generate(  # type: ignore[operator]
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        ids: list[int] = output[0, len(prompt) :].tolist()
        return ids


class Drafts:
    """One shipped draft behind the draft service's engine."""

    def __init__(self, name: str, embedding: torch.Tensor, context_weights: Sequence[float] = ()) -> None:
        model = assemble(
            find_draft(name), embedding, embedding, dtype=torch.float32, device="cpu", vocabulary_size=VOCABULARY
        )
        info = DrafterInfo("hf", name, "0" * 64, 512, vocabulary_size=VOCABULARY)
        memory = NUM_BLOCKS * model.bytes_per_block
        drafter = HfDrafter(model, info, kv_memory_bytes=memory, chunk_tokens=16_384, context_weights=context_weights)
        self._engine = DraftEngine(drafter, EngineLimits(), Stopping(), time.monotonic)

    def receive(self, event: Event) -> None:
        """Events are taken from the engine instead."""

    def blocks(
        self,
        contexts: Mapping[int, Sequence[int]],
        length: int,
        *,
        sampling: Sampling,
        rule: Rule,
        keys: Mapping[int, int],
    ) -> dict[int, tuple[list[int], list[bytes]]]:
        """(ids, rows) for each session's context; all together, as one batch."""
        for session_id, context in contexts.items():
            ask = DraftAsk(
                session_id,
                len(context),
                context_hash(context),
                tuple(context),
                length,
                sampling,
                rule,
                keys[session_id],
            )
            self._engine.submit(ask, self, arrived=time.monotonic())
        drafted: dict[int, tuple[list[int], list[bytes]]] = {session_id: ([], []) for session_id in contexts}
        ended = 0
        while ended < len(contexts):
            self._engine.tick()
            for event in self._engine.take_events():
                assert isinstance(event.what, Tokens | Ended), event.what
                ended += isinstance(event.what, Ended)
                if isinstance(event.what, Tokens):
                    ids, rows = drafted[event.ask.session_id]
                    ids += [proposal.token_id for proposal in event.what.proposals]
                    rows += [proposal.row for proposal in event.what.proposals if proposal.row is not None]
        return drafted

    def forget(self, session_ids: Sequence[int]) -> None:
        """These sessions are over."""
        for session_id in session_ids:
            self._engine.close(session_id)


def stand_in(seed: int = 0) -> StandIn:
    """The target and the drafts, in float32."""
    random = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCABULARY, WIDTH, generator=random) * 0.1
    tensors = dequantise(load_file(find_draft(LAYERS_OF) / "model.safetensors"))
    head = torch.randn(VOCABULARY, WIDTH, generator=random) * 0.02
    own = head_weight(embedding, tensors)
    head[tensors["token_ids"]] = own + own.std() * 0.3 * torch.randn(own.shape, generator=random)
    layers = {f"model.{name}": t for name, t in tensors.items() if name != "token_ids" and not name.startswith("head.")}
    weights = layers | {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    paged = PagedModel(_model(weights, ATTENTION_NAME), device="cpu", dtype=torch.float32, vocabulary_size=VOCABULARY)
    drafts = {name: Drafts(name, embedding) for name in NAMES}
    drafts[WITH_PAST] = Drafts(LAYERS_OF, embedding, PAST_WEIGHTS)
    return StandIn(_model(weights, "eager"), paged, drafts)


def _model(weights: Mapping[str, torch.Tensor], attention: str) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(find_draft(LAYERS_OF), local_files_only=True)
    config.tie_word_embeddings = False
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention
    )
    model.load_state_dict(weights, strict=True)
    return model.train(False).requires_grad_(False)

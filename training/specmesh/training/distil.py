"""Distil: train several drafts at once towards one target, which is run once per batch for all of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specmesh.training.batches import Batch, Batches
from specmesh.training.corpus import DOMAINS, Corpus
from specmesh.training.draft_model import DraftModel, choose_tokens
from specmesh.training.loss import distance, training_loss
from specmesh.training.write import Texts

_LEAST_RATE = 0.01
REAL_TEXT_COUNTS = 0.2
CONTRAST = 0.12
"""A specialist's head: a token's share in its own domain less this much of its share in the domains it is trained
against. For 6,144 tokens of prose against code: 2 % less of its own text covered, 25 % less of the other's."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """One draft to train.

    layers: which of the target's it begins with. head: how many tokens it can say. rank: of its head's correction.
    against: domains whose tokens its head rather does without.
    """

    name: str
    domains: tuple[str, ...]
    layers: tuple[int, ...]
    head: int
    rank: int
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DistilSettings:
    """One schedule, over max_seconds or max_steps, whichever comes first.

    The rate falls as a cosine over it; the loss turns from KL to total variation between `variation_from` and
    `variation_to` of it.
    """

    max_seconds: float
    max_steps: int
    learning_rate: float
    warmup_steps: int
    variation_from: float
    variation_to: float
    save_at: Sequence[float]
    compile: bool
    seed: int


class _Trainee:
    """A draft, its optimizer and what it may train on."""

    def __init__(self, plan: DraftPlan, draft: DraftModel, settings: DistilSettings) -> None:
        self.plan = plan
        self.draft = draft
        self._parameters = [parameter for parameter in draft.parameters() if parameter.requires_grad]
        on_cuda = self._parameters[0].is_cuda
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=on_cuda
        )
        self._measure = torch.compile(distance, dynamic=False) if settings.compile else distance

    def learn(
        self, batch: Batch, target_logits: Tensor, rate: float, share_of_variation: float
    ) -> tuple[Tensor, Tensor]:
        """One step of the optimizer. Returns the batch's mean KL and overlap."""
        with torch.autocast(target_logits.device.type, torch.bfloat16):
            logits = self.draft(batch.tokens)
        measured = self._measure(target_logits, logits, self.draft.token_ids)
        loss = training_loss(measured, batch.weights, share_of_variation)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        total = batch.weights.sum()
        return tuple((part.detach() * batch.weights).sum() / total for part in measured)  # type: ignore[return-value]


def make_drafts(
    target: PreTrainedModel, plans: Sequence[DraftPlan], texts: Texts, corpus: Corpus
) -> dict[str, DraftModel]:
    """Untrained drafts on the target's device, their heads on the commonest tokens of their domains."""
    drafts = {}
    for plan in plans:
        size = target.config.vocab_size
        shares = token_shares(plan.domains, texts, corpus, size) - CONTRAST * token_shares(
            plan.against, texts, corpus, size
        )
        token_ids = choose_tokens(shares, plan.head, corpus.end_ids)
        drafts[plan.name] = DraftModel(target, plan.layers, token_ids.to(target.device), rank=plan.rank).to(
            target.device
        )
    return drafts


def distil(
    target: PreTrainedModel,
    drafts: Mapping[str, DraftModel],
    plans: Sequence[DraftPlan],
    batches: Batches,
    settings: DistilSettings,
    *,
    save: Callable[[], None],
    report: Callable[[str], None],
) -> None:
    """Train `drafts` in place; `save` is called at each share of the schedule in `save_at`, and at the end."""
    torch.manual_seed(settings.seed)
    trainees = [_Trainee(plan, drafts[plan.name], settings) for plan in plans]
    if settings.compile:
        _compile_layers([target.get_decoder(), *(trainee.draft.decoder for trainee in trainees)])
    unsaved = sorted(settings.save_at)
    began, tokens = time.monotonic(), 0
    for step, batch in enumerate(batches):
        done = max(step / settings.max_steps, (time.monotonic() - began) / settings.max_seconds)
        if done >= 1:
            break
        if unsaved and done >= unsaved[0]:
            unsaved.pop(0)
            save()
        with torch.no_grad():
            target_logits = target(batch.tokens, use_cache=False).logits
        rate = (
            settings.learning_rate
            * min(1, (step + 1) / settings.warmup_steps)
            * max(_LEAST_RATE, 0.5 + 0.5 * cos(pi * done))
        )
        share = min(1.0, max(0.0, (done - settings.variation_from) / (settings.variation_to - settings.variation_from)))
        seen = {
            t.plan.name: t.learn(batch, target_logits, rate, share) for t in trainees if batch.domain in t.plan.domains
        }
        tokens += batch.tokens.numel()
        if step < 5 or step % 100 < 2 or step + 1 == settings.max_steps:
            figures = " ".join(f"{name} {float(kl):.3f} {float(overlap):.3f}" for name, (kl, overlap) in seen.items())
            report(
                f"step {step} {tokens / 1e6:.1f} M tokens {time.monotonic() - began:.0f} s {batch.domain}: {figures}"
            )
    save()


def _compile_layers(decoders: Sequence[Any]) -> None:
    """Compile the layers one by one: they share their code, so that it is compiled once and not once per depth."""
    torch._dynamo.config.recompile_limit = 64
    for decoder in decoders:
        for layer in decoder.layers:
            layer.compile(dynamic=False)


def token_shares(domains: Sequence[str], texts: Texts, corpus: Corpus, vocabulary_size: int) -> Tensor:
    """[V]: how often each token comes in the domains, written text before real text, each domain alike."""
    shares = torch.zeros(vocabulary_size, dtype=torch.float64)
    for domain in domains:
        rows = texts.domains == DOMAINS.index(domain)
        written = torch.from_numpy(texts.tokens[rows][texts.by_target[rows] & texts.valid[rows]].astype("int64"))
        shares += torch.bincount(written, minlength=vocabulary_size) / max(1, len(written))
        if domain in corpus.training.documents:
            real = torch.from_numpy(corpus.training.documents[domain].tokens.astype("int64"))
            shares += REAL_TEXT_COUNTS * torch.bincount(real, minlength=vocabulary_size) / len(real)
    return shares / max(1, len(domains))

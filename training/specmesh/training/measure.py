"""Measure a draft along texts that the target wrote: overlap of the laws, and tokens per step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specmesh.training.corpus import DOMAINS, IntArray
from specmesh.training.replay import FloatArray, survival, tokens_per_step
from specmesh.training.write import Texts

MAX_BLOCK_LENGTH = 8
MAX_WRITTEN = 128
"""Of a text only so many tokens count: a small target decoding greedily falls into loops, which any draft predicts."""
TEMPERATURES = (1.0, 0.7, 0.0)


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm on one domain at one temperature.

    `overlap`: the mean over positions of the sum of min(T, D); at temperature 0 the share of equal argmaxes.
    `tokens_per_step`: at block lengths 1 to 8, under BLOCK (temperature 0: longest equal prefix).
    """

    overlap: float
    tokens_per_step: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A text, `tokens` [L], of which the target wrote all from index `first` on, at `temperature`.

    `target_logits` [L - first, V]: row i is the law of token `first + i`.
    """

    tokens: Tensor
    first: int
    target_logits: Tensor
    temperature: float


@dataclass(frozen=True, slots=True)
class Along:
    """What an arm would have done at each of the n positions that the target wrote. overlap: [n]; kept: [n, 9]."""

    overlap: FloatArray
    kept: FloatArray


class Arm(Protocol):
    """What can be measured."""

    def along(self, text: Written) -> Along:
        """Draft along a text."""
        ...


def along_model(draft_logits: Tensor, token_ids: Tensor, text: Written) -> Along:
    """A model's law against the target's. draft_logits: [n, W] over token_ids [W], rows as the target's."""
    target, draft = text.target_logits.float(), draft_logits.float()
    if text.temperature == 0:
        return agreement(token_ids[draft.argmax(-1)], text)
    target_log = (target / text.temperature).log_softmax(-1)
    draft_log = (draft / text.temperature).log_softmax(-1)
    overlap = torch.minimum(target_log[:, token_ids].exp(), draft_log.exp()).sum(-1)
    following = text.tokens[text.first :]
    at = torch.searchsorted(token_ids, following).clamp_max(len(token_ids) - 1)
    log_ratio = draft_log.gather(1, at[:, None])[:, 0] - target_log.gather(1, following[:, None])[:, 0]
    ratio = torch.where(token_ids[at] == following, log_ratio.exp(), 0.0)
    return Along(overlap.cpu().numpy(), survival(ratio.cpu().numpy(), MAX_BLOCK_LENGTH, "BLOCK"))


def agreement(guesses: Tensor, text: Written) -> Along:
    """At temperature 0: guesses [n], each the arm's argmax, against the target's."""
    equal = (guesses == text.target_logits.argmax(-1)).double().cpu().numpy()
    return Along(equal, survival(equal, MAX_BLOCK_LENGTH, "BLOCK"))


def measure(
    target: PreTrainedModel, arms: Mapping[str, Arm], texts: Texts, *, rows_per_cell: int
) -> dict[str, dict[str, dict[float, Figures]]]:
    """Figures by arm, domain and temperature, on up to `rows_per_cell` texts of each domain and temperature."""
    figures: dict[str, dict[str, dict[float, Figures]]] = {name: {domain: {} for domain in DOMAINS} for name in arms}
    for index, domain in enumerate(DOMAINS):
        for temperature in TEMPERATURES:
            of_cell = (texts.domains == index) & (texts.temperatures == temperature)
            chosen = np.flatnonzero(of_cell & texts.by_target.any(axis=1))  # a long prompt may leave no room
            seen: dict[str, list[Along]] = {name: [] for name in arms}
            for text in written_texts(target, texts, _spread(chosen, rows_per_cell)):
                for name, arm in arms.items():
                    seen[name].append(arm.along(text))
            for name, parts in seen.items():
                if parts:
                    figures[name][domain][temperature] = _figures(parts)
    return figures


def _spread(rows: IntArray, count: int) -> IntArray:
    """`count` of the rows, evenly, so that chats and openings both come."""
    chosen: IntArray = rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]
    return chosen


@torch.inference_mode()
def written_texts(target: PreTrainedModel, texts: Texts, rows: IntArray) -> Iterator[Written]:
    """The chosen rows with the target's logits, up to where the target stops writing for the first time."""
    for row in rows:
        first = int(texts.by_target[row].argmax())
        written = texts.by_target[row, first : first + MAX_WRITTEN]
        length = first + (len(written) if written.all() else int(written.argmin()))
        tokens = torch.from_numpy(texts.tokens[row, :length].astype(np.int64)).to(target.device)
        keep = torch.arange(first - 1, length - 1, device=target.device)
        logits = target(tokens[None], use_cache=False, logits_to_keep=keep).logits[0]
        yield Written(tokens, first, logits, float(texts.temperatures[row]))


def _figures(parts: list[Along]) -> Figures:
    overlap = float(np.concatenate([part.overlap for part in parts]).mean())
    survivals = [part.kept for part in parts]
    return Figures(overlap, tuple(tokens_per_step(survivals, k) for k in range(1, MAX_BLOCK_LENGTH + 1)))

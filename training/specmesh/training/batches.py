"""Training batches: rows that the target wrote, among them some of real text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specmesh.training.corpus import DOMAINS, Corpus
from specmesh.training.write import Texts

_FORCED_WEIGHT = 0.25
_REAL_WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens: [B, L] int64. weights: [B, L] float32, of the prediction made at each position."""

    domain: str
    tokens: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """num_rows: B. domains: how often each comes. real_share: of a batch's rows, by domain.

    long_every: one batch in so many is real text in rows four times as long, so that a draft meets long contexts;
    0 = never.
    """

    num_rows: int
    domains: Mapping[str, float]
    real_share: Mapping[str, float]
    long_every: int
    seed: int


class Batches:
    """An endless stream of batches on a device; the texts live there."""

    def __init__(self, texts: Texts, corpus: Corpus, settings: BatchSettings, device: torch.device) -> None:
        self._settings = settings
        self._random = np.random.default_rng(settings.seed)
        self._device = device
        self._length = texts.tokens.shape[1]
        self._tokens = torch.from_numpy(texts.tokens.astype(np.int32)).to(device)
        self._weights = _prediction_weights(torch.from_numpy(texts.by_target), torch.from_numpy(texts.valid)).to(device)
        self._rows = {domain: np.flatnonzero(texts.domains == index) for index, domain in enumerate(DOMAINS)}
        self._real = {
            domain: torch.from_numpy(ragged.tokens.astype(np.int32)).to(device)
            for domain, ragged in corpus.training.documents.items()
        }

    def __iter__(self) -> Iterator[Batch]:
        names = list(self._settings.domains)
        shares = np.array([self._settings.domains[name] for name in names])
        step = 0
        while True:
            step += 1
            domain = names[int(self._random.choice(len(names), p=shares / shares.sum()))]
            every = self._settings.long_every
            yield self._long(domain) if every and step % every == 0 and domain in self._real else self._mixed(domain)

    def _mixed(self, domain: str) -> Batch:
        share = self._settings.real_share.get(domain, 0.0) if domain in self._real else 0.0
        num_real = int(self._settings.num_rows * share)
        chosen = self._random.choice(self._rows[domain], size=self._settings.num_rows - num_real)
        index = torch.from_numpy(chosen).to(self._device)
        tokens, weights = self._tokens[index], self._weights[index].float()
        if num_real:
            real = self._real_rows(domain, num_real, self._length)
            tokens = torch.cat([tokens, real])
            weights = torch.cat([weights, torch.full(real.shape, _REAL_WEIGHT, device=self._device)])
        return Batch(domain, tokens.long(), weights)

    def _long(self, domain: str) -> Batch:
        tokens = self._real_rows(domain, max(1, self._settings.num_rows // 4), self._length * 4).long()
        return Batch(domain, tokens, torch.full(tokens.shape, _REAL_WEIGHT, device=self._device))

    def _real_rows(self, domain: str, count: int, length: int) -> Tensor:
        real = self._real[domain]
        starts = torch.from_numpy(self._random.integers(0, len(real) - length, size=count)).to(self._device)
        return real[starts[:, None] + torch.arange(length, device=self._device)]


def _prediction_weights(by_target: Tensor, valid: Tensor) -> Tensor:
    """[N, L] float16: 1 where the target wrote the next token, less where it was forced, 0 where there is none."""
    following = torch.where(by_target, 1.0, _FORCED_WEIGHT) * valid
    weights = torch.zeros(following.shape, dtype=torch.float16)
    weights[:, :-1] = following[:, 1:]
    return weights

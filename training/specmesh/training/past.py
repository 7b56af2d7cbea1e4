"""How much a distilled draft trusts the session's own past: the weights of `specmesh.draft.context_voice`, fitted.

What counts is the overlap with the target, sum of min(T, D), at every temperature alike, of the mixture as served: the
model's likeliest ids, what followed earlier matches of the context, then the temperature.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specmesh.draft.lookup import MatchIndex
from specmesh.draft.past import PastMixture
from specmesh.draft.sparse_law import Law
from specmesh.training.arms import ServedArm
from specmesh.training.measure import Written, written_texts
from specmesh.training.write import Texts

MAX_MATCH = 8
FIRST = (4.0, 16.0, 64.0, 256.0)
SECOND = (0.5, 2.0, 8.0, 32.0)
LONGER = (0.3, 1.0, 3.0, 10.0)
"""Candidates for the weights of matches of one, of two, and of more tokens."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of n positions and, at each, up to K ids. own, of_target: [n, K] probabilities, 0 where there is no id.

    counts: [n, MAX_MATCH, K], occurrences of at least so long a match that were followed by the id.
    """

    own: Tensor
    of_target: Tensor
    counts: Tensor
    temperature: float


def fit_past(
    target: PreTrainedModel, draft: ServedArm, texts: Texts, *, rows: npt.NDArray[np.int64]
) -> tuple[tuple[float, ...], float, float]:
    """(weights, overlap with them, overlap without) that are best on the chosen rows."""
    evidence = [evidence_of(text, draft.own_laws(text)) for text in written_texts(target, texts, rows)]
    scored = [(overlap(evidence, weights), weights) for weights in _candidates()]
    best, weights = max(scored)
    return weights, best, overlap(evidence, ())


def overlap(evidence: Sequence[Evidence], weights: Sequence[float]) -> float:
    """The mean overlap of the mixture with these weights, each temperature counting alike."""
    found: dict[float, list[Tensor]] = {}
    for part in evidence:
        found.setdefault(part.temperature, []).append(_overlaps(part, weights))
    return float(np.mean([torch.cat(parts).mean().item() for parts in found.values()]))


def _overlaps(evidence: Evidence, weights: Sequence[float]) -> Tensor:
    """[n]."""
    law = evidence.own
    for length, weight in enumerate(weights):
        counts = evidence.counts[:, length]
        law = (counts + weight * law) / (counts.sum(1, keepdim=True) + weight)
    if evidence.temperature == 0:
        return evidence.of_target.gather(1, law.argmax(1, keepdim=True))[:, 0]
    law = law ** (1 / evidence.temperature)
    return torch.minimum(law / law.sum(1, keepdim=True), evidence.of_target).sum(1)


def evidence_of(text: Written, own: Sequence[Law]) -> Evidence:
    """Walk one text; at temperature 0 `of_target` is 1 at the target's argmax."""
    tokens = text.tokens.tolist()
    index = MatchIndex(PastMixture((1.0,) * MAX_MATCH).settings)
    for token in tokens[: text.first]:
        index.push(token)
    followers: list[list[tuple[int, int]]] = []
    for token in tokens[text.first :]:
        followers.append(index.matches())
        index.push(token)
    ids = [sorted({*law, *(token for _, token in found)}) for law, found in zip(own, followers, strict=True)]
    shape = len(ids), max(map(len, ids))
    laws, at = torch.zeros(shape), torch.zeros(shape, dtype=torch.int64)
    counts, exists = torch.zeros(shape[0], MAX_MATCH, shape[1]), torch.zeros(shape, dtype=torch.bool)
    for row, (row_ids, law, found) in enumerate(zip(ids, own, followers, strict=True)):
        column = {token: place for place, token in enumerate(row_ids)}
        at[row, : len(row_ids)], exists[row, : len(row_ids)] = torch.tensor(row_ids), True
        laws[row, : len(row_ids)] = torch.tensor([law.get(token, 0.0) for token in row_ids])
        for length, token in found:
            counts[row, :length, column[token]] += 1
    return Evidence(laws, torch.where(exists, _of_target(text).gather(1, at), 0.0), counts, text.temperature)


def _of_target(text: Written) -> Tensor:
    """[n, V] of the target's law; one-hot at temperature 0."""
    logits = text.target_logits.float().cpu()
    if text.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return (logits / text.temperature).softmax(-1)


def _candidates() -> Iterator[tuple[float, ...]]:
    for first, second, longer in product(FIRST, SECOND, LONGER):
        yield first, second, *[longer] * (MAX_MATCH - 2)

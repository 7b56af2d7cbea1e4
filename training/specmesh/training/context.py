"""How much a table trusts the session's own past: the weights of `specmesh.draft.adaptive`, fitted on written text.

What counts is the overlap with the target, sum of min(T, D). Along a text drawn from T its mean is that of min(1, D/T)
at the emitted tokens, so D is needed at these only, and D is a function of few numbers: how many earlier occurrences
each length of match has, how many of them were followed by the token, and the table's own probability of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from specmesh.draft.adaptive import ContextMixture
from specmesh.draft.lookup import MatchIndex
from specmesh.draft.ngram_file import MAX_ORDER, NgramTable
from specmesh.training.measure import Written, written_texts
from specmesh.training.write import Texts

MAX_MATCH = 8
FIRST = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SECOND = (0.1, 0.25, 0.5, 1.0, 2.0)
LONGER = (0.15, 0.3, 0.6, 1.0, 2.0)
"""Candidates for the weights of matches of one, of two, and of more tokens."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of n tokens that the target wrote. matches, hits: [n, MAX_MATCH + 1] by length of match, the longest of each."""

    matches: Floats
    hits: Floats
    of_table: Floats
    of_target: Floats


def fit_weights(
    target: PreTrainedModel, table: NgramTable, texts: Texts, *, rows: npt.NDArray[np.int64]
) -> tuple[tuple[float, ...], float]:
    """(weights, overlap) that are best on the chosen rows, each temperature counting alike."""
    mixture = ContextMixture(table, (1.0,) * MAX_MATCH)
    parts: dict[float, list[Evidence]] = {}
    for text in written_texts(target, texts, rows):
        if text.temperature > 0:
            parts.setdefault(text.temperature, []).append(evidence_of(text, table, mixture))
    by_temperature = [_joined(part) for part in parts.values()]
    scored = [
        (float(np.mean([overlap(part, weights) for part in by_temperature])), weights) for weights in _candidates()
    ]
    best, weights = max(scored)
    return weights, best


def overlap(evidence: Evidence, weights: Sequence[float]) -> float:
    """The mean overlap of the mixture with these weights, as estimated at the emitted tokens."""
    return float(np.minimum(1.0, probabilities(evidence, weights) / evidence.of_target).mean())


def probabilities(evidence: Evidence, weights: Sequence[float]) -> Floats:
    """[n]: what the mixture gives each emitted token, by the recursion that `ContextMixture` unrolls."""
    total: Floats = evidence.of_table
    for length, weight in enumerate(weights, start=1):
        number = evidence.matches[:, length:].sum(axis=1)
        total = (evidence.hits[:, length:].sum(axis=1) + weight * total) / (number + weight)
    return total


def evidence_of(text: Written, table: NgramTable, mixture: ContextMixture) -> Evidence:
    """Walk one text."""
    tokens = text.tokens.tolist()
    index = MatchIndex(mixture.settings)
    for token in tokens[: text.first]:
        index.push(token)
    shape = len(tokens) - text.first, MAX_MATCH + 1
    matches, hits, of_table = np.zeros(shape), np.zeros(shape), np.zeros(shape[0])
    for row, token in enumerate(tokens[text.first :]):
        for length, followed_by in index.matches():
            matches[row, length] += 1
            hits[row, length] += followed_by == token
        found = table.find(tokens[max(0, text.first + row - MAX_ORDER) : text.first + row])
        if found is not None:
            ids, probs = found[0].distribution(found[1])
            of_table[row] = probs[ids == token].sum()
        index.push(token)
    log_target = (text.target_logits.float() / text.temperature).log_softmax(-1)
    emitted = torch.as_tensor(tokens[text.first :], device=log_target.device)
    of_target = log_target.gather(1, emitted[:, None])[:, 0].exp().double().cpu().numpy()
    return Evidence(matches, hits, of_table, of_target)


def _candidates() -> Iterator[tuple[float, ...]]:
    for first, second, longer in product(FIRST, SECOND, LONGER):
        yield first, second, *[longer] * (MAX_MATCH - 2)


def _joined(parts: Sequence[Evidence]) -> Evidence:
    columns = ("matches", "hits", "of_table", "of_target")
    return Evidence(*(np.concatenate([getattr(part, column) for part in parts]) for column in columns))

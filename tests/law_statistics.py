"""Chi-square of simulated text against the literal law."""

from collections.abc import Callable, Mapping

import numpy as np
from law_harness import PROMPT
from law_literal import law
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from specmesh.runtime.types import Sampling

LEAST_EXPECTED = 5.0
Floats = NDArray[np.float64]
Law = Callable[[tuple[int, ...]], Floats]


def law_by_context(target: Tensor, sampling: Sampling) -> Law:
    """The literal law as a function of the whole context (of its last two tokens, but for penalties), remembered."""
    known: dict[tuple[object, ...], Floats] = {}

    def at(context: tuple[int, ...]) -> Floats:
        counts = count(context) if sampling.has_penalties else {}
        key = (context[-2:], tuple(sorted(counts.items())))
        if key not in known:
            known[key] = np.array(law(target[context[-2], context[-1]].tolist(), sampling, counts))
        return known[key]

    return at


def count(context: tuple[int, ...]) -> Mapping[int, int]:
    return {token: context.count(token) for token in set(context)}


def chi_square(observed: Floats, expected: Floats) -> tuple[float, int]:
    """Statistic and degrees of freedom of one multinomial, cells under 5 expected pooled; (inf, 1) for a count that the
    law forbids; (0, 0) where there is too little to say anything."""
    if observed[expected == 0].any():
        return np.inf, 1
    observed, expected = observed[expected > 0], expected[expected > 0]
    small = expected < LEAST_EXPECTED
    observed, expected = _pooled(observed, expected, small)
    if len(expected) > 1 and expected[-1] < LEAST_EXPECTED:
        order = np.argsort(expected)
        observed, expected = _pooled(observed, expected, np.isin(np.arange(len(expected)), order[:2]))
    if len(expected) < 2:
        return 0.0, 0
    return float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1


def _pooled(observed: Floats, expected: Floats, small: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    if not small.any():
        return observed, expected
    return (
        np.append(observed[~small], observed[small].sum()),
        np.append(expected[~small], expected[small].sum()),
    )


def transitions_p(tokens: Tensor, law_at: Law, vocabulary_size: int, *, full_history: bool) -> float:
    """p-value of all transitions of `tokens` `[N, T]`, by two-token context or by the full history."""
    total, freedom = 0.0, 0
    for context, observed in _transitions(tokens.numpy(), vocabulary_size, full_history=full_history):
        statistic, degrees = chi_square(observed, law_at(context) * observed.sum())
        total, freedom = total + statistic, freedom + degrees
    return _tail(total, freedom)


def _transitions(tokens: NDArray[np.int64], size: int, *, full_history: bool) -> list[tuple[tuple[int, ...], Floats]]:
    """(context, counts of what followed it) for each context that is met."""
    prompt = np.broadcast_to(np.array(PROMPT), (len(tokens), len(PROMPT)))
    whole = np.concatenate((prompt, tokens), axis=1)
    spans = (
        [whole[:, : end + 1] for end in range(len(PROMPT), whole.shape[1])]
        if full_history
        else [np.concatenate([whole[:, end - 2 : end + 1] for end in range(len(PROMPT), whole.shape[1])])]
    )
    found = []
    for span in spans:
        width = span.shape[1]
        codes = span @ (size ** np.arange(width)[::-1])
        contexts, where = np.unique(codes // size, return_inverse=True)
        counts = np.zeros((len(contexts), size))
        np.add.at(counts, (where, codes % size), 1)
        enough = counts.sum(axis=1) >= 2 * LEAST_EXPECTED
        for code, observed in zip(contexts[enough].tolist(), counts[enough], strict=True):
            found.append((tuple(code // size**i % size for i in reversed(range(width - 1))), observed))
    return found


def first_tokens_p(tokens: Tensor, law_at: Law, vocabulary_size: int, number: int = 4) -> float:
    """p-value of the joint law of the first `number` tokens of `[N, T]`."""
    probs = np.ones(1)
    contexts: list[tuple[int, ...]] = [PROMPT]
    for _ in range(number):
        probs = np.concatenate([p * law_at(c) for p, c in zip(probs, contexts, strict=True)])
        contexts = [(*context, token) for context in contexts for token in range(vocabulary_size)]
    codes = tokens[:, :number].numpy() @ (vocabulary_size ** np.arange(number)[::-1])
    observed = np.bincount(codes, minlength=len(probs)).astype(np.float64)
    statistic, degrees = chi_square(observed, probs * len(tokens))
    return _tail(statistic, degrees)


def _tail(statistic: float, degrees: int) -> float:
    """p-value; 1 where the law leaves nothing to chance, and so nothing to test."""
    return float(stats.chi2.sf(statistic, degrees)) if degrees else 1.0


def kolmogorov_p(samples: NDArray[np.int64], probs: Floats) -> float:
    """One-sample Kolmogorov-Smirnov against a law on ids, by the continuous law of the distance: conservative."""
    shares = np.bincount(samples, minlength=len(probs)) / len(samples)
    distance = float(np.abs(np.cumsum(shares - probs)).max())
    return float(stats.kstwo.sf(distance, len(samples)))

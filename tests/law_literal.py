"""The specification's sampling rules once more, in plain Python on lists, one token at a time and in double precision.

Slow on purpose and sharing no arithmetic with the kernels: what the fast forms are compared with. `Margin` remembers
the narrowest comparison, so that a test can leave out inputs that rounding alone decides.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from specmesh.kernels.inputs import VerifyInput
from specmesh.runtime.contract import ROW_TOTAL, Purpose
from specmesh.runtime.philox import philox
from specmesh.runtime.types import Rule, Sampling


class Margin:
    """The smallest gap, as a share of the larger side, between two numbers that were compared and differed."""

    def __init__(self) -> None:
        self.narrowest = math.inf

    def note(self, left: float, right: float) -> None:
        if left != right and math.isfinite(left) and math.isfinite(right):
            self.narrowest = min(self.narrowest, abs(left - right) / max(abs(left), abs(right), 1e-30))

    def less(self, left: float, right: float) -> bool:
        self.note(left, right)
        return left < right


def scores(logits: Sequence[float], sampling: Sampling, counts: Mapping[int, int]) -> list[float]:
    """Bias, then penalties."""
    adjusted = list(logits)
    for token, bias in sampling.logit_bias:
        if token < len(adjusted):
            adjusted[token] += bias
    for token, count in counts.items():
        if sampling.has_penalties and count and token < len(adjusted):
            score = adjusted[token]
            score = score * sampling.repetition_penalty if score < 0 else score / sampling.repetition_penalty
            adjusted[token] = score - sampling.presence_penalty - sampling.frequency_penalty * count
    return adjusted


def softmax(values: Sequence[float]) -> list[float]:
    most = max(values)
    powers = [math.exp(value - most) for value in values]
    total = math.fsum(powers)
    return [power / total for power in powers]


def law(
    logits: Sequence[float], sampling: Sampling, counts: Mapping[int, int] | None = None, margin: Margin | None = None
) -> list[float]:
    """The probabilities of the next token at one position, over the real vocabulary."""
    margin = margin or Margin()
    adjusted = scores(logits, sampling, counts or {})
    order = sorted(range(len(adjusted)), key=lambda token: (-adjusted[token], token))
    for first, second in pairwise(order):
        margin.note(adjusted[first], adjusted[second])
    if sampling.temperature == 0:
        return [float(token == order[0]) for token in range(len(adjusted))]
    most = adjusted[order[0]]
    cooled = [(score - most) / max(sampling.temperature, 1e-30) for score in adjusted]
    kept = order[: sampling.top_k or None]
    probs = dict(zip(kept, softmax([cooled[token] for token in kept]), strict=True))
    if sampling.top_p < 1:
        kept = _nucleus(kept, probs, sampling.top_p, margin)
    kept = [token for token in kept if not margin.less(probs[token], sampling.min_p * probs[kept[0]])]
    total = math.fsum(probs[token] for token in kept)
    return [probs[token] / total if token in kept else 0.0 for token in range(len(adjusted))]


def _nucleus(kept: Sequence[int], probs: Mapping[int, float], top_p: float, margin: Margin) -> list[int]:
    mass, chosen = 0.0, []
    for token in kept:
        if chosen and not margin.less(mass, top_p):
            break
        chosen.append(token)
        mass += probs[token]
    return chosen


def word(key: int, counter: tuple[int, int, int, int], index: int = 0) -> int:
    return int(philox(key, counter)[index])


def uniform(key: int, block_start: int, offset: int) -> float:
    return (word(key, (block_start, offset, int(Purpose.ACCEPT), 0)) >> 8) / 2.0**24


def noise(key: int, block_start: int, offset: int, purpose: Purpose, token: int) -> float:
    v = (word(key, (block_start, offset, int(purpose), token >> 2), token & 3) + 0.5) / 2.0**32
    return -math.log(-math.log1p(-min(v, 1 - 2.0**-24)))


def draw(weights: Sequence[float], noises: Sequence[float], margin: Margin) -> int:
    """Gumbel-max: a draw from `weights`, which need no normalising."""
    values = [math.log(w) + g if w > 0 else -math.inf for w, g in zip(weights, noises, strict=True)]
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if len(order) > 1:
        margin.note(math.exp(values[order[0]] - 30), math.exp(values[order[1]] - 30))
    return order[0]


def verify(rows_of_logits: Sequence[Sequence[float]], item: VerifyInput, margin: Margin) -> tuple[int, int] | None:
    """(accepted, next token) of one block by its rule; None when a row that was needed is not finite."""
    size = len(rows_of_logits[0])
    targets: list[list[float]] = []
    for offset, logits in enumerate(rows_of_logits):
        counts = Counter(item.token_counts or {}) + Counter(item.draft_token_ids[:offset])
        if not all(math.isfinite(x) or x == -math.inf for x in logits) or max(logits) == -math.inf:
            break
        targets.append(law(logits, item.sampling, counts, margin))
    length = min(len(item.draft_token_ids), len(targets))
    if item.sampling.temperature == 0 or item.rule is Rule.COUPLED:
        return _by_prefix(targets, item, size, margin)
    drafts = [_row(item, offset, size) for offset in range(length)]
    uniforms = [uniform(item.key, item.block_start, offset) for offset in range(length)]
    decide = _block if item.rule is Rule.BLOCK else _token
    accepted, scale = decide(targets, drafts, item.draft_token_ids, uniforms, margin)
    if accepted == len(targets):
        return None
    weights = targets[accepted]
    purpose = Purpose.BONUS
    if accepted < length:
        purpose = Purpose.RESIDUAL
        residual = [max(scale * t - d, 0.0) for t, d in zip(weights, drafts[accepted], strict=True)]
        margin.note(math.fsum(residual) + 1, 1.0)
        weights = residual if any(residual) else weights
    noises = [noise(item.key, item.block_start, accepted, purpose, token) for token in range(size)]
    return accepted, draw(weights, noises, margin)


def _row(item: VerifyInput, offset: int, size: int) -> list[float]:
    draft = [0.0] * size
    if not item.rows:
        draft[item.draft_token_ids[offset]] = 1.0
        return draft
    for token, weight in zip(*item.rows[offset], strict=True):
        draft[int(token)] = int(weight) / ROW_TOTAL
    return draft


def _by_prefix(
    targets: Sequence[Sequence[float]], item: VerifyInput, size: int, margin: Margin
) -> tuple[int, int] | None:
    for offset in range(len(item.draft_token_ids) + 1):
        if offset == len(targets):
            return None
        noises = [0.0] * size
        if item.sampling.temperature > 0:
            noises = [noise(item.key, item.block_start + offset, 0, Purpose.COUPLED, t) for t in range(size)]
        token = draw(targets[offset], noises, margin)
        if offset == len(item.draft_token_ids) or item.draft_token_ids[offset] != token:
            return offset, token
    raise AssertionError("unreachable")


def _token(
    targets: Sequence[Sequence[float]],
    drafts: Sequence[Sequence[float]],
    tokens: Sequence[int],
    uniforms: Sequence[float],
    margin: Margin,
) -> tuple[int, float]:
    for i, (token, u) in enumerate(zip(tokens, uniforms, strict=False)):
        if not margin.less(u, targets[i][token] / drafts[i][token]):
            return i, 1.0
    return len(uniforms), 1.0


def _block(
    targets: Sequence[Sequence[float]],
    drafts: Sequence[Sequence[float]],
    tokens: Sequence[int],
    uniforms: Sequence[float],
    margin: Margin,
) -> tuple[int, float]:
    reach, accepted, scale = 1.0, 0, 1.0
    for i in range(1, len(uniforms) + 1):
        token = tokens[i - 1]
        reach = min(1.0, reach * targets[i - 1][token] / drafts[i - 1][token])
        accept = reach
        if i < len(uniforms):
            row = [(t, d) for t, d in zip(targets[i], drafts[i], strict=True) if d > 0]
            residual = reach * (1 - math.fsum(t for t, _ in row)) + math.fsum(max(reach * t - d, 0) for t, d in row)
            residual = max(residual, 0.0)
            margin.note(1 - reach + residual + 1, 1.0)
            accept = residual / (residual + 1 - reach) if residual + 1 - reach > 0 else 1.0
        if margin.less(uniforms[i - 1], accept):
            accepted, scale = i, reach
    return accepted, scale

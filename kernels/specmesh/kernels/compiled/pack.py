"""Plain objects to the one buffer of numbers that goes to the device (`fields` says what is where)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from specmesh.kernels.compiled import fields
from specmesh.kernels.inputs import VerifyInput
from specmesh.kernels.reference.law import COLDEST
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.types import Rule, Sampling

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]

_RULES = {
    Rule.TOKEN: fields.RULE_TOKEN.value,
    Rule.BLOCK: fields.RULE_BLOCK.value,
    Rule.COUPLED: fields.RULE_COUPLED.value,
}


@dataclass(frozen=True, slots=True)
class Packed:
    """Numbers to send, and what of a batch chooses the kernels' form.

    `row_starts` `[B]`: each session's first row of logits; `length` and `row_size` are the largest of the batch.
    """

    numbers: Int32Array
    row_starts: Int32Array
    num_sessions: int
    num_rows: int
    length: int
    row_size: int
    adjust: bool
    truncate: bool
    coupled: bool
    greedy: bool


def pack(inputs: Sequence[VerifyInput], vocabulary_size: int, max_rows: int) -> Packed:
    """The buffer of a batch; its first `max_rows` numbers are the rows' sessions, then come the sessions."""
    lengths = np.array([len(item.draft_token_ids) for item in inputs], dtype=np.int64)
    rules = [fields.RULE_GREEDY.value if item.sampling.greedy else _RULES[item.rule] for item in inputs]
    table = np.zeros((len(inputs), fields.SESSION_FIELDS.value), dtype=np.int32)
    rows = np.full(max_rows, -1, dtype=np.int32)
    num_rows = int(lengths.sum()) + len(inputs)
    rows[:num_rows] = np.repeat(np.arange(len(inputs), dtype=np.int32), lengths + 1)
    _put_sampling(table, [item.sampling for item in inputs], vocabulary_size)
    table[:, fields.ROW_START.value] = np.cumsum(lengths + 1) - lengths - 1
    table[:, fields.LENGTH.value] = lengths
    table[:, fields.RULE.value] = rules
    keys = np.array([item.key for item in inputs], dtype=np.uint64).view(np.int32).reshape(-1, 2)
    table[:, fields.KEY_LOW.value], table[:, fields.KEY_HIGH.value] = keys[:, 0], keys[:, 1]
    starts = np.array([item.block_start for item in inputs], dtype=np.int64)
    table[:, fields.BLOCK_START.value] = starts.astype(np.uint32).view(np.int32)
    lists = _Lists(max_rows + table.size)
    table[:, fields.TOKENS.value] = (
        lists.add(np.fromiter(_tokens(inputs), dtype=np.int32)) + np.cumsum(lengths) - lengths
    )
    sizes, entries = _entries(inputs, rules)
    begins = np.concatenate(([0], np.cumsum(2 * sizes))) + lists.end + len(sizes) + 1
    table[:, fields.ROW_BEGINS.value] = lists.add(begins.astype(np.int32)) + np.cumsum(lengths) - lengths
    lists.add(entries)
    adjust = False
    for b, item in enumerate(inputs):
        if item.sampling.logit_bias or item.sampling.has_penalties:
            extra = item.draft_token_ids if item.sampling.has_penalties else ()
            adjust |= _put_adjusted(table[b], lists, item.sampling, item.token_counts, extra, vocabulary_size)
    return Packed(
        numbers=np.concatenate((rows, table.reshape(-1), *lists.parts)),
        row_starts=table[:, fields.ROW_START.value],
        num_sessions=len(inputs),
        num_rows=num_rows,
        length=int(lengths.max()),
        row_size=int(sizes.max(initial=1)),
        adjust=adjust,
        truncate=bool(table[:, fields.TRUNCATED.value].any()),
        coupled=fields.RULE_COUPLED.value in rules,
        greedy=all(rule == fields.RULE_GREEDY.value for rule in rules),
    )


class _Lists:
    """Lists end to end, and the place in the buffer where each begins."""

    def __init__(self, begin: int) -> None:
        self.end = begin
        self.parts: list[Int32Array] = []

    def add(self, numbers: Int32Array) -> int:
        begin = self.end
        self.parts.append(numbers)
        self.end += len(numbers)
        return begin


def _tokens(inputs: Sequence[VerifyInput]) -> chain[int]:
    return chain.from_iterable(item.draft_token_ids for item in inputs)


def _put_sampling(table: Int32Array, samplings: Sequence[Sampling], vocabulary_size: int) -> None:
    """What every session says, greedy ones at temperature 1 without truncation: so their log-probabilities are read."""
    values = np.array(
        [
            (
                max(s.temperature, COLDEST) if not s.greedy else 1.0,
                1.0 if s.greedy else s.top_p,
                0.0 if s.greedy else s.min_p,
                s.repetition_penalty,
                s.presence_penalty,
                s.frequency_penalty,
            )
            for s in samplings
        ],
        dtype=np.float32,
    )
    top_k = np.array([0 if s.greedy else min(s.top_k, vocabulary_size) for s in samplings])
    top_k[top_k == 0] = vocabulary_size
    truncated = (top_k < vocabulary_size) | (values[:, 1] < 1) | (values[:, 2] > 0)
    with np.errstate(divide="ignore"):
        values[:, 2] = np.log(values[:, 2])
    bits = values.view(np.int32)
    names = ("TEMPERATURE", "TOP_P", "LOG_MIN_P", "REPETITION", "PRESENCE", "FREQUENCY")
    for column, name in enumerate(names):
        table[:, getattr(fields, name).value] = bits[:, column]
    table[:, fields.TOP_K.value] = top_k
    table[:, fields.TRUNCATED.value] = truncated
    table[:, fields.PENALISED.value] = [s.has_penalties for s in samplings]


def _entries(inputs: Sequence[VerifyInput], rules: Sequence[int]) -> tuple[NDArray[np.int64], Int32Array]:
    """(entries per drafted token, the entries as pairs end to end); a one-hot row is written out."""
    sizes: list[int] = []
    ids: list[NDArray[np.integer]] = []
    weights: list[NDArray[np.integer]] = []
    for item, rule in zip(inputs, rules, strict=True):
        tokens = item.draft_token_ids
        if rule in (fields.RULE_GREEDY.value, fields.RULE_COUPLED.value):
            sizes += [0] * len(tokens)
        elif item.rows:
            for row in item.rows:
                sizes.append(len(row[0]))
                ids.append(row[0])
                weights.append(row[1])
        elif tokens:
            sizes += [1] * len(tokens)
            ids.append(np.array(tokens, dtype=np.uint32))
            weights.append(np.full(len(tokens), ROW_TOTAL, dtype=np.uint32))
    pairs = np.empty((sum(sizes), 2), dtype=np.int32)
    if ids:
        pairs[:, 0], pairs[:, 1] = np.concatenate(ids), np.concatenate(weights)
    return np.array(sizes, dtype=np.int64), pairs.reshape(-1)


def _put_adjusted(
    session: Int32Array,
    lists: _Lists,
    sampling: Sampling,
    counts: Mapping[int, int] | None,
    drafted: Sequence[int],
    vocabulary_size: int,
) -> bool:
    """The ids that bias or penalties may move, ascending, with both, and where they do; whether there may be any at
    another block.
    """
    seen = dict(counts or {}) if sampling.has_penalties else {}
    bias = dict(sampling.logit_bias)
    ids = np.unique(np.fromiter(chain(bias, seen, drafted), dtype=np.int64))
    ids = ids[ids < vocabulary_size]
    values = np.zeros((2, len(ids)), dtype=np.float32)
    listed: tuple[Mapping[int, float], Mapping[int, float]] = (bias, seen)
    for row, given in enumerate(listed):
        keys = np.fromiter(given, dtype=np.int64)
        numbers = np.fromiter(given.values(), dtype=np.float32)
        inside = keys < vocabulary_size
        values[row, np.searchsorted(ids, keys[inside])] = numbers[inside]
    unit = fields.UNIT.value
    bounds = np.arange(-(-vocabulary_size // unit) + 1) * unit
    session[fields.NUM_ADJUSTED.value] = len(ids)
    session[fields.ADJUSTED.value] = lists.add(
        np.concatenate((ids.astype(np.int32), values.reshape(-1).view(np.int32), _moves(ids, values, drafted)))
    )
    session[fields.ADJUSTED_UNITS.value] = lists.add(np.searchsorted(ids, bounds).astype(np.int32))
    return len(ids) > 0 or sampling.has_penalties


def _moves(ids: NDArray[np.int64], values: Float32Array, drafted: Sequence[int]) -> Int32Array:
    """Ids with the first row that each is moved in: 0 with a bias or a count, else that after it was first drafted."""
    rows = np.full(len(ids), len(drafted) + 1)
    tokens = np.array(drafted[::-1], dtype=np.int64)  # of equal ones the first is written last
    known = np.isin(tokens, ids)
    rows[np.searchsorted(ids, tokens[known])] = np.arange(len(drafted), 0, -1)[known]
    rows[(values != 0).any(axis=0)] = 0
    moves: Int32Array = (rows * fields.MOVED_ROW.value + ids).astype(np.int32)
    return moves

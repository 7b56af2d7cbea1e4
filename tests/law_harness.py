"""Many sequences at once through the real tensor code of drafting and verification, from tables over two tokens.

Each step every unfinished sequence gets an arm, a block length and a cut, chosen without looking at any token; drafts,
verifies and commits as the services do. Keys are per sequence, and only they and the counters decide a token.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specmesh.kernels.reference.batch import DraftBatch, DraftRows, LawParams, Ragged, VerifyBatch, VerifyResult, spread
from specmesh.kernels.reference.draft_step import draft_batch
from specmesh.kernels.reference.verify import verify_batch
from specmesh.runtime.types import Rule, Sampling

PROMPT = (0, 1)
Verify = Callable[[VerifyBatch], VerifyResult]


@dataclass(frozen=True)
class Tables:
    """Raw logits by (second-to-last, last) token: target `[V, V, W]`, drafts `[arms, V, V, W]`."""

    target: Tensor
    drafts: Tensor

    @property
    def vocabulary_size(self) -> int:
        return self.target.shape[0]


def random_tables(
    vocabulary_size: int, seed: int, *, nearness: tuple[float, ...] = (0.8, 0.4, 0.0), contrast: float = 1.3
) -> Tables:
    """A target and one draft per entry of `nearness`: 1 would be the target itself, 0 has nothing to do with it."""
    generator = torch.Generator().manual_seed(seed)
    shape = (vocabulary_size, vocabulary_size, vocabulary_size)
    target = torch.randn(shape, generator=generator) * contrast
    near = torch.tensor(nearness)[:, None, None, None]
    other = torch.randn((len(nearness), *shape), generator=generator) * contrast
    return Tables(target, near * target + (1 - near) * other)


@dataclass(frozen=True)
class Drafting:
    """How blocks come about. `stop_after`: a draft ends its block after it has drafted (and kept) this token."""

    length: int
    cuts: bool = False
    one_hot: bool = False
    max_row: int = 128
    row_mass: float = 0.995
    stop_after: int | None = None


@dataclass(frozen=True)
class Delivery:
    """A block as drafted: lengths `[n]`, ids `[n, L]`; `wanted` `[n]` is what had been asked for."""

    lengths: Tensor
    token_ids: Tensor
    wanted: Tensor


def all_arrives(delivery: Delivery) -> Tensor:
    """Lengths as delivered: nothing is lost."""
    return delivery.lengths


def as_sampled(token_ids: Tensor) -> Tensor:
    """Drafted ids as they are sent: an honest draft."""
    return token_ids


@dataclass
class Simulation:
    """State of N sequences while they grow to `num_tokens` output tokens each."""

    tables: Tables
    sampling: Sampling
    rule: Rule
    drafting: Drafting
    num_sequences: int
    num_tokens: int
    seed: int
    verify: Verify = verify_batch
    deliver: Callable[[Delivery], Tensor] = all_arrives
    send: Callable[[Tensor], Tensor] = as_sampled
    token_limit: int = field(init=False)
    tokens: Tensor = field(init=False)
    lengths: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.token_limit = len(PROMPT) + self.num_tokens
        self.tokens = torch.zeros((self.num_sequences, self.token_limit + self.drafting.length + 1), dtype=torch.int64)
        self.tokens[:, : len(PROMPT)] = torch.tensor(PROMPT)
        self.lengths = torch.full((self.num_sequences,), len(PROMPT))
        self.verify_keys, self.draft_keys = self._keys(), self._keys()

    def _keys(self) -> Tensor:
        words = self.random.integers(0, 2**64, self.num_sequences, dtype=np.uint64)
        return torch.from_numpy(words.view(np.int64))

    def run(self) -> Tensor:
        """Output tokens `[N, num_tokens]`."""
        while len(active := (self.lengths < self.token_limit).nonzero()[:, 0]):
            self._step(active)
        return self.tokens[:, len(PROMPT) : self.token_limit]

    def _step(self, active: Tensor) -> None:
        lengths, rows = self._draft(active)
        delivered = torch.minimum(
            self.deliver(Delivery(lengths, self._span(active, self.drafting.length), self.wanted)), lengths
        )
        result = self.verify(self._verify_batch(active, delivered, rows))
        if not bool(result.finite.all()):
            raise AssertionError("a table's logits are finite")
        end = self.lengths[active] + result.num_accepted
        self.tokens[active, end] = result.next_token
        self.lengths[active] = end + 1

    def _integers(self, low: int, high: int, size: int) -> Tensor:
        return torch.from_numpy(self.random.integers(low, high, size))

    def _draft(self, active: Tensor) -> tuple[Tensor, DraftRows]:
        """Writes drafts behind the contexts; their numbers and rows `[n, L, K]`."""
        n, length = len(active), self.drafting.length
        arms = self._integers(0, len(self.tables.drafts), n)
        lowest = 0 if self.drafting.cuts else length
        self.wanted = self._integers(lowest, length + 1, n)
        lengths = torch.zeros(n, dtype=torch.int64)
        shape = (n, length, min(self.drafting.max_row, self.tables.vocabulary_size))
        rows = DraftRows(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64))
        going = torch.ones(n, dtype=torch.bool)
        for offset in range(length):
            going = going & (offset < self.wanted)
            here = going.nonzero()[:, 0]
            if len(here) == 0:
                break
            ids = self.send(self._draft_one(active[here], arms[here], offset, (rows, here)))
            self.tokens[active[here], self.lengths[active[here]] + offset] = ids
            lengths[here] += 1
            if self.drafting.stop_after is not None:
                going[here[ids == self.drafting.stop_after]] = False
        return lengths, rows

    def _draft_one(self, sequences: Tensor, arms: Tensor, offset: int, out: tuple[DraftRows, Tensor]) -> Tensor:
        logits = self.tables.drafts[arms, *self._context(sequences, offset)]
        if self.drafting.one_hot:
            return logits.argmax(dim=-1)
        zeros = torch.zeros_like(sequences)
        coupled = self.rule is Rule.COUPLED
        result = draft_batch(
            DraftBatch(
                logits=logits,
                vocabulary_size=self.tables.vocabulary_size,
                token_map=None,
                block_start=self.lengths[sequences],
                offset=zeros + offset,
                key=(self.verify_keys if coupled else self.draft_keys)[sequences],
                coupled=zeros == int(coupled) - 1,
                max_row=zeros + self.drafting.max_row,
                row_mass=torch.full((len(sequences),), self.drafting.row_mass),
                law=self._law(sequences, offset),
            )
        )
        if result.rows is not None:
            rows, here = out
            rows.ids[here, offset, : result.rows.ids.shape[1]] = result.rows.ids
            rows.weights[here, offset, : result.rows.ids.shape[1]] = result.rows.weights
        return result.token_ids

    def _span(self, sequences: Tensor, length: int) -> Tensor:
        """The `length` tokens behind each context, `[n, length]`."""
        return self.tokens[sequences].gather(1, self.lengths[sequences][:, None] + torch.arange(length))

    def _context(self, sequences: Tensor, offset: Tensor | int) -> tuple[Tensor, Tensor]:
        end = self.lengths[sequences] + offset
        return self.tokens[sequences, end - 2], self.tokens[sequences, end - 1]

    def _law(self, sequences: Tensor, prefix: int = 0) -> LawParams:
        """One sampling for all, with counts over prompt, output and `prefix` drafts."""
        n, size = len(sequences), self.tables.vocabulary_size
        counts = torch.zeros((n, 0), dtype=torch.int64)
        if self.sampling.has_penalties:
            inside = torch.arange(self.tokens.shape[1]) < (self.lengths[sequences] + prefix)[:, None]
            counts = torch.zeros((n, size), dtype=torch.int64)
            counts.scatter_add_(1, self.tokens[sequences], inside.to(torch.int64))
        return same_law(self.sampling, n, counts)

    def _verify_batch(self, active: Tensor, lengths: Tensor, rows: DraftRows) -> VerifyBatch:
        session, offset = spread(lengths + 1)
        drafted, place = spread(lengths)
        weights = rows.weights[drafted, place]
        entry, column = (weights > 0).nonzero(as_tuple=True)
        sizes = (weights > 0).sum(dim=1)
        return VerifyBatch(
            logits=self.tables.target[self._context(active[session], offset)],
            vocabulary_size=self.tables.vocabulary_size,
            row_starts=starts(lengths + 1),
            draft_token_ids=self.tokens[active[drafted], self.lengths[active[drafted]] + place],
            draft_rows=Ragged(starts(sizes), rows.ids[drafted, place][entry, column], weights[entry, column]),
            block_start=self.lengths[active],
            key=self.verify_keys[active],
            coupled=torch.full((len(active),), self.rule is Rule.COUPLED),
            block_rule=torch.full((len(active),), self.rule is Rule.BLOCK),
            law=self._law(active),
        )


def starts(sizes: Tensor) -> Tensor:
    """Where each of the lists end to end begins, and the end of the last, `[n + 1]`."""
    return torch.cat((sizes.new_zeros(1), sizes.cumsum(0)))


def same_law(sampling: Sampling, n: int, counts: Tensor) -> LawParams:
    """The same sampling for n sessions; `counts` `[n, V]` (or `[n, 0]` for none)."""
    full = {
        name: torch.full((n,), float(getattr(sampling, name)))
        for name in (
            "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        )
    }  # fmt: skip
    bias = sampling.logit_bias
    bias_ids = torch.tensor([token for token, _ in bias], dtype=torch.int64).repeat(n)
    bias_values = torch.tensor([value for _, value in bias], dtype=torch.float32).repeat(n)
    width = counts.shape[1]
    return LawParams(
        **full,
        top_k=torch.full((n,), sampling.top_k),
        bias=Ragged(torch.arange(n + 1) * len(bias), bias_ids, bias_values),
        counts=Ragged(torch.arange(n + 1) * width, torch.arange(width).repeat(n), counts.flatten()),
    )

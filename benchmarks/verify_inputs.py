"""What a verify step of a benchmark is given: laws like a language model's, and blocks of a draft that is near them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from graph_timing import COLD_BYTES
from torch import Tensor

from specmesh.kernels.inputs import DraftInput, VerifyInput
from specmesh.kernels.ops import draft_step
from specmesh.runtime.rows import decode_row
from specmesh.runtime.types import Rule, Sampling

LENGTH = 4
ROWS = LENGTH + 1
ROW_IDS = 64


@dataclass(frozen=True)
class Step:
    """`sets`: raw target logits `[5 B, V]`, several that are nearly alike; `draft` `[4 B, V]`: the draft's own.

    `blocks`: under BLOCK at temperature 0.7; rows of 64 ids.
    """

    sets: Sequence[Tensor]
    draft: Tensor
    blocks: Sequence[VerifyInput]

    @property
    def batch(self) -> int:
        """Sessions."""
        return len(self.blocks)

    @property
    def vocabulary_size(self) -> int:
        """Columns."""
        return int(self.draft.shape[1])

    def inputs(self, rule: Rule, sampling: Sampling) -> list[VerifyInput]:
        """The same blocks by another rule."""
        bare = rule is Rule.COUPLED or sampling.greedy
        return [replace(b, rule=rule, sampling=sampling, rows=[] if bare else b.rows) for b in self.blocks]


def language_like(rows: int, size: int, device: str) -> Tensor:
    """Float32 logits: probability about rank^-2."""
    generator = torch.Generator(device=device).manual_seed(size + rows)
    ranks = torch.rand((rows, size), generator=generator, device=device).argsort(dim=1).to(torch.float32)
    return -2.0 * ranks.add_(1.0).log_() + 0.3 * torch.randn((rows, size), generator=generator, device=device)


def make_step(batch: int, size: int, device: str, sampling: Sampling) -> Step:
    """Draft logits are the target's with noise; the tokens are drawn from the rows."""
    generator = torch.Generator(device=device).manual_seed(batch)

    def near(logits: Tensor, distance: float) -> Tensor:
        return logits + distance * torch.randn(logits.shape, generator=generator, device=device)

    target = language_like(batch * ROWS, size, device)
    number = max(2, -(-COLD_BYTES // (2 * target.numel()))) if device == "cuda" else 2
    sets = [near(target, 0.02).to(torch.bfloat16) for _ in range(number)]
    drafted = torch.tensor([b * ROWS + offset for b in range(batch) for offset in range(LENGTH)], device=device)
    draft = near(target[drafted], 0.3).to(torch.bfloat16)
    asks = [
        DraftInput(100, offset, sampling, Rule.BLOCK, 7 + b, None, ROW_IDS, 1.0)
        for b in range(batch)
        for offset in range(LENGTH)
    ]
    tokens = draft_step(draft, asks, vocabulary_size=size)
    blocks = []
    for b in range(batch):
        own = tokens[b * LENGTH : (b + 1) * LENGTH]
        rows = [decode_row(token.row) for token in own if token.row is not None]
        blocks.append(VerifyInput(100, [t.token_id for t in own], rows, sampling, Rule.BLOCK, 1000 + b))
    return Step(sets, draft, blocks)

"""The backend over a target with a paged cache: block tables, one ragged forward, one verification."""

import time
from collections.abc import Sequence

import torch

from specmesh.kernels.ops import verify
from specmesh.model.blocks import BlockAllocator, blocks_for
from specmesh.model.spans import Span
from specmesh.verifier.backend import Verified, Work
from specmesh.verifier.session import SessionKey
from specmesh.verifier.target import TargetModel


class PagedBackend:
    """Owns the block tables of all sessions; rollback is by position, so nothing is undone after a rejection."""

    def __init__(self, target: TargetModel, *, num_blocks: int, max_context_tokens: int) -> None:
        self.vocabulary_size = target.vocabulary_size
        self.max_context_tokens = max_context_tokens
        self._target = target
        self._blocks = BlockAllocator(num_blocks)
        self._tables: dict[SessionKey, list[int]] = {}
        target.allocate_cache(num_blocks)

    @property
    def num_blocks(self) -> int:
        """Cache blocks in all."""
        return self._blocks.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Cache blocks that no session holds."""
        return self._blocks.available

    def open(self, key: SessionKey, num_tokens: int) -> bool:
        """Reserve the blocks of a whole context, so that a session once admitted never runs out."""
        blocks = self._blocks.allocate(blocks_for(num_tokens))
        if blocks is None:
            return False
        self._tables[key] = blocks
        return True

    def close(self, key: SessionKey) -> None:
        """Free the session's blocks."""
        self._blocks.free(self._tables.pop(key))

    def verify(self, batch: Sequence[Work]) -> Verified:
        """One ragged forward over the batch, then one verification of all its blocks."""
        started_ns = time.perf_counter_ns()
        with torch.inference_mode():
            logits = self._target.forward([self._span(work) for work in batch])
            forward_ns = time.perf_counter_ns()
            inputs = [work.verify for work in batch if work.verify is not None]
            if not inputs:
                return Verified((), forward_ns - started_ns)
            num_top = [work.num_top for work in batch if work.verify is not None]
            outcomes = verify(logits, inputs, vocabulary_size=self.vocabulary_size, num_top=num_top)
        return Verified(outcomes, forward_ns - started_ns, time.perf_counter_ns() - forward_ns)

    def _span(self, work: Work) -> Span:
        num_rows = 0 if work.verify is None else 1 + len(work.verify.draft_token_ids)
        return Span(work.token_ids, work.start, self._tables[work.key], first_row=len(work.token_ids) - num_rows)

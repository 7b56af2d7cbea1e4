"""The backend over a target with a paged cache: block tables, one ragged forward, one verification."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from specmesh.kernels.ops import verify
from specmesh.model.blocks import BLOCK_TOKENS
from specmesh.model.errors import RanksLost
from specmesh.model.spans import Span
from specmesh.verifier.backend import BackendLost, OutOfMemory, Verified, Work
from specmesh.verifier.pool import BlockPool, Table
from specmesh.verifier.session import SessionKey
from specmesh.verifier.target import TargetModel


class PagedBackend:
    """Owns the block tables of all sessions; rollback is by position, so nothing is undone after a rejection."""

    def __init__(
        self,
        target: TargetModel,
        *,
        num_blocks: int,
        max_context_tokens: int,
        prefix_sharing: bool = True,
        watch: AbstractContextManager[object] | None = None,
    ) -> None:
        """`watch`: entered for the time of each `verify`."""
        self.vocabulary_size = target.vocabulary_size
        self.max_context_tokens = max_context_tokens
        self._target = target
        self._watch = nullcontext() if watch is None else watch
        self._pool = BlockPool(num_blocks, sharing=prefix_sharing)
        self._tables: dict[SessionKey, Table] = {}
        target.allocate_cache(num_blocks)

    @property
    def num_blocks(self) -> int:
        """Cache blocks in all."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Cache blocks that no session holds."""
        return self._pool.available

    def open(self, key: SessionKey, salt: bytes, context: Sequence[int], num_tokens: int) -> int | None:
        """Take blocks for `num_tokens` tokens, those of a known beginning of the context among them."""
        opened = self._pool.open(salt, context, num_tokens)
        if opened is None:
            return None
        if opened.copy is not None:
            self._target.copy_block(*opened.copy)
        self._tables[key] = opened.table
        return opened.num_cached

    def grow(self, key: SessionKey, num_tokens: int) -> int:
        """Blocks for `num_tokens` tokens in all."""
        table = self._tables[key]
        self._pool.grow(table, num_tokens)
        return len(table.blocks) * BLOCK_TOKENS

    def trim(self, key: SessionKey, num_tokens: int) -> None:
        """Give back blocks beyond `num_tokens`."""
        self._pool.roll_back(self._tables[key], num_tokens)

    def commit(self, key: SessionKey, context: Sequence[int], num_cached: int) -> int:
        """Let others share the full blocks among the first `num_cached` tokens."""
        return self._pool.commit(self._tables[key], context, num_cached)

    def close(self, key: SessionKey, *, forget: bool = False) -> None:
        """Free the session's blocks."""
        self._pool.close(self._tables.pop(key), forget=forget)

    def verify(self, batch: Sequence[Work]) -> Verified:
        """One ragged forward over the batch, then one verification of all its blocks."""
        try:
            with self._watch:
                return self._verify(batch)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory from error
        except RanksLost as error:
            raise BackendLost from error

    def _verify(self, batch: Sequence[Work]) -> Verified:
        started_ns = time.perf_counter_ns()
        with torch.inference_mode():
            logits = self._target.forward([self._span(work) for work in batch])
            forward_ns = time.perf_counter_ns()
            inputs = [work.verify for work in batch if work.verify is not None]
            if not inputs:
                return Verified((), forward_ns - started_ns)
            num_top = [work.session.spec.logprobs for work in batch if work.verify is not None]
            outcomes = verify(logits, inputs, vocabulary_size=self.vocabulary_size, num_top=num_top)
        return Verified(outcomes, forward_ns - started_ns, time.perf_counter_ns() - forward_ns)

    def _span(self, work: Work) -> Span:
        tokens = work.token_ids
        num_rows = 0 if work.verify is None else 1 + len(work.verify.draft_token_ids)
        return Span(tokens, work.start, self._tables[work.session.key].blocks, len(tokens) - num_rows)

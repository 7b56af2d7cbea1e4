"""Compiling ahead: all that requests can ask for is compiled, and loaded, before the first one comes.

Triton compiles in threads (`AsyncCompileMode`): most of it runs without Python's lock, and the code for a launch is
found again under the same key. Compiling makes no call that a CUDA graph's recording forbids, so forwards can be
recorded meanwhile.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from triton import AsyncCompileMode

from specmesh.kernels.compiled.draft_plan import DraftCapacity, DraftForm, DraftPlan
from specmesh.kernels.compiled.forms import Requests, all_forms
from specmesh.kernels.compiled.heads import head_of
from specmesh.kernels.compiled.launching import Launch
from specmesh.kernels.compiled.plan import Capacity, VerifyPlan
from specmesh.kernels.inputs import DraftInput, VerifyInput
from specmesh.runtime.types import Rule, Sampling

_EVERY = 10
"""Kernels between two lines of the log."""

logger = logging.getLogger(__name__)


class CompileAhead:
    """Begins at once, in the background; nothing is ready before `finish` has returned."""

    def __init__(self, device: torch.device, launches: Sequence[Launch]) -> None:
        """`launches`: of a batch that may really be run, each kernel as it is to be compiled."""
        self._device, self._launches = device, launches
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="compile-ahead", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all is compiled, and load it: run each launch. Raises what compiling raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        for launch in self._launches:
            launch.run()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _run(self) -> None:
        try:
            with torch.cuda.device(self._device), Workers() as workers, AsyncCompileMode(workers):
                for launch in self._launches:
                    launch.kernel.warmup(*launch.arguments, grid=launch.grid, **launch.options)
        except BaseException as error:  # noqa: BLE001 - `finish` raises it where it can be heard
            self._error = error


class Workers(ThreadPoolExecutor):
    """A thread per core, which say how far they are."""

    def __init__(self) -> None:
        super().__init__(len(os.sched_getaffinity(0)), thread_name_prefix="compile-ahead")
        self._submitted, self._done = 0, 0
        self._counting = threading.Lock()

    def submit(self, work: Callable[..., Any], /, *arguments: object, **options: object) -> Future[Any]:
        """As the base class does."""
        future = super().submit(work, *arguments, **options)
        self._submitted += 1
        future.add_done_callback(self._count)
        return future

    def _count(self, future: Future[Any]) -> None:
        with self._counting:
            self._done += 1
            done = self._done
        if done % _EVERY == 0 or done == self._submitted:
            logger.info(f"compiling kernels: {done} of {self._submitted}")


def compile_verify(logits: Tensor, vocabulary_size: int, requests: Requests) -> CompileAhead:
    """`verify` for logits like these, `[R, W]` on a CUDA device."""
    return CompileAhead(logits.device, verify_launches(_a_row_like(logits), vocabulary_size, requests))


def compile_draft(logits: Tensor, vocabulary_size: int, token_map: Tensor | None) -> CompileAhead:
    """`draft_step` and `score_tokens` for logits like these, `[R, W]` on a CUDA device, and their head."""
    return CompileAhead(logits.device, draft_launches(_a_row_like(logits), vocabulary_size, token_map))


def _a_row_like(logits: Tensor) -> Tensor:
    return logits.new_zeros((1, logits.shape[1]))


def verify_launches(
    logits: Tensor, vocabulary_size: int, requests: Requests, token_map: Tensor | None = None
) -> list[Launch]:
    """All that batches of these requests may launch, on `logits` `[1, W]`; the longest to compile first."""
    step = VerifyInput(0, [], [], Sampling(), Rule.BLOCK, 0)
    plan = VerifyPlan(logits.device, vocabulary_size, Capacity(1, 1, 4096))
    plan.load([step])
    forms = all_forms(requests, plan.tuning)
    return _one_of_each([plan.launches(logits, form, token_map) for form in forms])


def draft_launches(logits: Tensor, vocabulary_size: int, token_map: Tensor | None) -> list[Launch]:
    """The same of drafting: rows, and tokens that are sure."""
    head = head_of(vocabulary_size, token_map)
    item = DraftInput(0, 0, Sampling(), Rule.BLOCK, 0, None, 1, 1.0)
    plan = DraftPlan(logits.device, head.columns, DraftCapacity(1, 1, 4096), head.token_map)
    plan.load([item])
    rows = [plan.launches(logits, DraftForm(1, 1, adjust)) for adjust in (True, False)]
    sure = Requests(block_length=0, row_size=1, by_session=False)
    return _one_of_each(rows) + verify_launches(logits, head.columns, sure, head.token_map)


def _one_of_each(chains: Sequence[Sequence[Launch]]) -> list[Launch]:
    """Of launches of the same code one, where it comes first; whole chains of the first, so that they can be run."""
    seen: dict[object, Launch] = {}
    for launch in (launch for chain in chains for launch in chain):
        seen.setdefault((launch.kernel.__name__, tuple(sorted(launch.options.items()))), launch)
    return list(seen.values())

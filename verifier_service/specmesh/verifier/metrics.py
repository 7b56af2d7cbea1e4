"""What a verifier measures: each batch, and what its engine holds. By default nobody asks."""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.entries import EntrySpans, Phase
from specmesh.runtime.telemetry.instruments import Deferred, Registry, Values
from specmesh.runtime.types import EntryFailure, Outcome, ServiceInfo
from specmesh.verifier.session import Answer

if TYPE_CHECKING:
    from specmesh.verifier.backend import Backend, Verified, Work
    from specmesh.verifier.engine import Engine


_NEVER = dict.fromkeys(("ticks", "sessions_opened", "leases_ended", "failed_ticks", "non_finite_logits"), 0)
"""What has not happened yet shows as 0: an increase is seen only where there was a 0 before."""


_Tick = tuple[int, int, int, int]
"""Nanoseconds in all, of the forward pass and of the verification; the batch's size."""


class MeasuredBackend:
    """A backend whose batches are measured: their size and time by part. For the engine's thread, as any."""

    def __init__(self, backend: "Backend", registry: Registry) -> None:
        self._backend = backend
        self.vocabulary_size = backend.vocabulary_size
        self.max_context_tokens = backend.max_context_tokens
        # What is not measured is the backend's own: a step takes five of these.
        self.open, self.grow, self.trim = backend.open, backend.grow, backend.trim
        self.commit, self.close = backend.commit, backend.close
        durations = registry.histogram(names.TICK_DURATION)
        self._durations = [durations.of(part) for part in ("total", "forward", "verify")]
        self._batch = registry.histogram(names.VERIFIER_BATCH).of()
        self._ticks: Deferred[_Tick] = Deferred(registry, self._record)

    @property
    def num_blocks(self) -> int:
        """Cache blocks in all."""
        return self._backend.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Cache blocks that no session holds."""
        return self._backend.num_free_blocks

    def verify(self, batch: "Sequence[Work]") -> "Verified":
        """One forward pass and the verification of its blocks."""
        started_ns = time.perf_counter_ns()
        verified = self._backend.verify(batch)
        total_ns = time.perf_counter_ns() - started_ns
        self._ticks.note((total_ns, verified.forward_ns, verified.verify_ns, len(batch)))
        return verified

    def _record(self, ticks: "Sequence[_Tick]") -> None:
        *times, batch_sizes = zip(*ticks, strict=True)
        for series, nanoseconds in zip(self._durations, times, strict=True):
            series.record_nanoseconds(nanoseconds)
        self._batch.record_all(batch_sizes)


def observe_engine(registry: Registry, engine: "Engine", info: ServiceInfo) -> None:
    """Gauges, looked at when they are collected, and what the engine counts itself."""
    backend = engine.backend

    def blocks() -> Iterable[tuple[Values, float]]:
        free = backend.num_free_blocks
        return [(("used",), backend.num_blocks - free), (("free",), free)]

    model = info.kind, info.model_name, info.model_digest
    registry.observe(names.VERIFIER_QUEUE, lambda: [((), engine.num_waiting + engine.num_pending)])
    registry.observe(names.VERIFIER_SESSIONS, lambda: [((), engine.num_sessions)])
    registry.observe(names.KV_BLOCKS, blocks)
    registry.observe(names.VERIFIER_EVENTS, lambda: [((event,), n) for event, n in (_NEVER | engine.counters).items()])
    registry.observe(names.MODEL_INFO, lambda: [(model, 1.0)])


def end_span(spans: EntrySpans, answer: Answer) -> None:
    """An entry is answered: where its time went, and what came of it."""
    if isinstance(answer, EntryFailure):
        spans.end(answer.session_id, answer.position, error=answer.reason.value)
        return
    timing = answer.timing
    attributes = {
        names.BATCH_SIZE: answer.batch_size,
        names.NUM_DRAFTED: answer.num_drafted,
        names.NUM_ACCEPTED: answer.num_accepted,
        names.NUM_EMITTED: len(answer.token_ids),
    }
    phases = [
        Phase(names.QUEUE_SPAN, timing.queue_ns),
        Phase(names.FORWARD_SPAN, timing.forward_ns),
        Phase(names.KERNEL_SPAN, timing.verify_ns),
    ]
    outcome = None
    if answer.finish_reason is None:
        outcome = Outcome(answer.position, answer.num_accepted, answer.token_ids[-1])
    spans.end(answer.session_id, answer.position, attributes, phases, outcome=outcome)

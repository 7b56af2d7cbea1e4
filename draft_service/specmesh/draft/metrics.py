"""What a draft service measures of its blocks, and the spans of entries. By default nobody asks."""

from collections.abc import Sequence
from typing import Protocol

from specmesh.draft.block import Ended, Event, Failed, Needed, Tokens
from specmesh.draft.drafter import DrafterInfo
from specmesh.draft.engine import DraftEngine
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.entries import EntrySpans, Phase
from specmesh.runtime.telemetry.instruments import Deferred, Registry, Tally
from specmesh.runtime.telemetry.spans import Attribute
from specmesh.runtime.types import ContextSource, DraftEndReason

CONTEXT_NEEDED = "context_needed"


class BlockWatch(Protocol):
    """Hears of answers, on the event loop."""

    def ended(self, block: Ended) -> None:
        """A block is complete."""

    def failed(self, failure: Failed) -> None:
        """An entry has failed."""


class NoBlockWatch:
    """Does not."""

    def ended(self, block: Ended) -> None:
        """Nothing."""

    def failed(self, failure: Failed) -> None:
        """Nothing."""


_Kind = tuple[DraftEndReason, ContextSource]
_Block = tuple[int, int, int, int, _Kind]
"""Nanoseconds in the queue and computing; batch size; tokens; what ended it and where its context came from."""


class BlockMetrics:
    """Time by part, tokens, batch size, and where contexts came from."""

    def __init__(self, registry: Registry) -> None:
        durations = registry.histogram(names.DRAFT_DURATION)
        self._queue, self._compute = durations.of("queue"), durations.of("compute")
        self._series = registry.counter(names.DRAFT_BLOCKS)
        self._tokens = registry.counter(names.DRAFT_TOKENS).of()
        self._batch = registry.histogram(names.DRAFT_BATCH).of()
        self._blocks: Deferred[_Block] = Deferred(registry, self._record)
        self._kinds: Tally[_Kind] = Tally(registry, self._count)

    def ended(self, block: Ended) -> None:
        """A block is complete."""
        kind = block.reason, block.source
        self._blocks.note((block.queue_ns, block.compute_ns, block.batch_size, block.num_drafted, kind))

    def _record(self, blocks: Sequence[_Block]) -> None:
        queue_ns, compute_ns, batch_sizes, num_drafted, kinds = zip(*blocks, strict=True)
        self._queue.record_nanoseconds(queue_ns)
        self._compute.record_nanoseconds(compute_ns)
        self._batch.record_all(batch_sizes)
        self._tokens.add(sum(num_drafted))
        self._kinds.add(kinds)

    def _count(self, kind: _Kind, number: int) -> None:
        reason, source = kind
        self._series.of(reason.value, source.value).add(number)

    def failed(self, failure: Failed) -> None:
        """An entry has failed."""
        self._series.of(failure.reason.value, "").add()


def observe_draft(registry: Registry, engine: DraftEngine, info: DrafterInfo) -> None:
    """Gauges, looked at when they are collected."""
    model = info.kind, info.name, info.model_digest
    registry.observe(names.DRAFT_SESSIONS, lambda: [((), len(engine.store))])
    registry.observe(names.MODEL_INFO, lambda: [(model, 1.0)])


def end_span(spans: EntrySpans, event: Event) -> None:
    """An entry is answered, unless there is more to come."""
    session_id, position, what = event.ask.session_id, event.ask.position, event.what
    if isinstance(what, Ended):
        attributes: dict[str, Attribute] = {
            names.NUM_DRAFTED: what.num_drafted,
            names.BATCH_SIZE: what.batch_size,
            names.SOURCE: what.source.value,
            names.REASON: what.reason.value,
        }
        phases = [Phase(names.QUEUE_SPAN, what.queue_ns)]
        if what.source is ContextSource.PREDICTED:  # computed before this entry came
            attributes[names.OVERLAP] = what.compute_ns / 1e9
        else:
            phases.append(Phase(names.COMPUTE_SPAN, what.compute_ns))
        spans.end(session_id, position, attributes, phases)
    elif isinstance(what, Needed):
        spans.end(session_id, position, {names.REASON: CONTEXT_NEEDED})
    elif not isinstance(what, Tokens):
        spans.end(session_id, position, error=what.reason.value)

"""What a draft service measures of its blocks, and the spans of entries. By default nobody asks."""

from typing import Protocol

from specmesh.draft.block import Ended, Event, Failed, Needed, Tokens
from specmesh.draft.drafter import DrafterInfo
from specmesh.draft.engine import DraftEngine
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.entries import EntrySpans, Phase
from specmesh.runtime.telemetry.instruments import Deferred, Registry
from specmesh.runtime.telemetry.spans import Attribute
from specmesh.runtime.types import ContextSource

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


class BlockMetrics:
    """Time by part, tokens, batch size, and where contexts came from."""

    def __init__(self, registry: Registry) -> None:
        durations = registry.histogram(names.DRAFT_DURATION)
        self._queue, self._compute = durations.of("queue"), durations.of("compute")
        self._blocks = registry.counter(names.DRAFT_BLOCKS)
        self._tokens = registry.counter(names.DRAFT_TOKENS).of()
        self._batch = registry.histogram(names.DRAFT_BATCH).of()
        self.ended = Deferred(registry, self._record).note

    def _record(self, block: Ended) -> None:
        self._queue.record(block.queue_ns / 1e9)
        self._compute.record(block.compute_ns / 1e9)
        self._batch.record(block.batch_size)
        self._tokens.add(block.num_drafted)
        self._blocks.of(block.reason.value, block.source.value).add()

    def failed(self, failure: Failed) -> None:
        """An entry has failed."""
        self._blocks.of(failure.reason.value, "").add()


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

"""Parts for tests of the verifier: tables, sessions, a clock that is set by hand, a core that is stepped by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specmesh.model.spans import Span
from specmesh.runtime.errors import MeshError
from specmesh.runtime.rows import check_block
from specmesh.runtime.types import EntryFailure, Outcome, Rule, Sampling, SessionSpec, StepResult
from specmesh.verifier.admission import Opening
from specmesh.verifier.batcher import TickLimits
from specmesh.verifier.core import Core
from specmesh.verifier.entries import EntryLimits
from specmesh.verifier.outbox import Outbox
from specmesh.verifier.paged import PagedBackend
from specmesh.verifier.session import NEVER_NS, Answer, Entry
from specmesh.verifier.target import TableTarget, TargetModel

GREEDY = Sampling(temperature=0.0)
MS = 1_000_000
LIMITS = TickLimits(max_verify_rows=512, max_prefill_tokens=256)


def successor_logits(successor: dict[int, int], size: int) -> NDArray[np.float32]:
    """A table whose arg-max after token t is `successor[t]` (t + 1, cyclically, where it says nothing)."""
    logits = np.zeros((size, size, size), np.float32)
    for token in range(size):
        logits[:, token, successor.get(token, (token + 1) % size)] = 5.0
    return logits


COUNTING = successor_logits({}, 32)
"""Greedily, t is followed by t + 1, modulo 32."""


def numbers(start: int, count: int) -> list[int]:
    """What `COUNTING` says from `start` on."""
    return [(start + index) % 32 for index in range(count)]


def random_logits(size: int, seed: int = 0, scale: float = 2.0) -> NDArray[np.float32]:
    """A table without structure."""
    return (np.random.default_rng(seed).standard_normal((size, size, size)) * scale).astype(np.float32)


def make_spec(context: Sequence[int] = (0,), **changes: Any) -> SessionSpec:
    """A greedy session of peer "router" without stop ids; `prompt_length` is the whole context unless given."""
    spec = SessionSpec(
        session_id=1,
        peer="router",
        context=tuple(context),
        prompt_length=len(context),
        sampling=GREEDY,
        rule=Rule.TOKEN,
        verify_key=11,
        draft_key=22,
        max_output_tokens=100,
    )
    return replace(spec, **changes)


class ManualClock:
    """Nanoseconds that pass when told to."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def pass_ms(self, milliseconds: float) -> None:
        self.now_ns += int(milliseconds * MS)


class FailingTarget(TableTarget):
    """Raises the errors it is given, one per forward."""

    def __init__(self) -> None:
        super().__init__(COUNTING, max_context_tokens=256)
        self.errors: list[Exception] = []
        self.batches: list[int] = []

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        self.batches.append(len(spans))
        if self.errors:
            raise self.errors.pop(0)
        return super().forward(spans)


class Collector:
    """A peer's stream that keeps its answers."""

    def __init__(self, peer: str = "router") -> None:
        self.peer = peer
        self.answers: list[Answer] = []

    def deliver(self, answers: Sequence[Answer]) -> None:
        self.answers += answers


class Stepper:
    """A core without a thread: every call runs at once, ticks run when asked for."""

    def __init__(
        self,
        target: TargetModel,
        *,
        num_blocks: int = 64,
        limits: TickLimits = LIMITS,
        max_waiting: int = 8,
        entry_limits: EntryLimits | None = None,
        prefix_sharing: bool = True,
        max_sessions: int | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.backend = PagedBackend(
            target, num_blocks=num_blocks, max_context_tokens=target.max_context_tokens, prefix_sharing=prefix_sharing
        )
        self.core = Core(
            self.backend, limits=limits, entry_limits=entry_limits or EntryLimits(), max_waiting_sessions=max_waiting,
            max_sessions=max_sessions,
            clock=self.clock,
        )  # fmt: skip
        self.stream = Collector()
        self.settled: dict[int, MeshError | None] = {}
        self.found: dict[int, int] = {}

    def open(self, spec: SessionSpec, *, deadline_ns: int = NEVER_NS) -> Opening:
        opening = Opening(spec, lambda error: None, deadline_ns)
        self.core.open(opening)
        self.flush()
        return opening

    def send(
        self, session_id: int, position: int, token_ids: Sequence[int] = (), rows: Sequence[bytes] = (),
        *, stream: Collector | None = None, deadline_ns: int = NEVER_NS, arrived_ns: int | None = None,
        after: Outcome | None = None, run_count: int = 0,
    ) -> None:  # fmt: skip
        """Submit a block, checked as the engine does."""
        stream = stream or self.stream
        session = self.core.sessions[stream.peer, session_id]
        refusal, decoded = check_block(
            token_ids, rows, vocabulary_size=self.backend.vocabulary_size,
            draft_key=session.spec.draft_key, block_start=position,
        )  # fmt: skip
        tokens = tuple(token_ids) if refusal is None else ()
        arrived_ns = self.clock() if arrived_ns is None else arrived_ns
        entry = Entry(stream, position, tokens, decoded, refusal, arrived_ns, deadline_ns, after, run_count)
        self.core.submit(session, entry)
        self.flush()

    def tick(self) -> None:
        self.core.tick()
        self.flush()

    def flush(self) -> None:
        outbox, self.core.outbox = self.core.outbox, Outbox()
        for opening, result in outbox.settled:
            session_id = opening.spec.session_id
            self.settled[session_id] = result if isinstance(result, MeshError) else None
            if isinstance(result, int):
                self.found[session_id] = result
        for stream, answers in outbox.answers():
            stream.deliver(answers)

    def step(self, session_id: int, position: int, token_ids: Sequence[int] = ()) -> StepResult:
        """One block through as many ticks as it takes."""
        before = len(self.stream.answers)
        self.send(session_id, position, token_ids)
        for _ in range(1000):
            if len(self.stream.answers) > before:
                break
            self.tick()
        answer = self.stream.answers[before]
        assert isinstance(answer, StepResult), answer
        return answer

    def failure(self) -> EntryFailure:
        """The last answer, which is a failure."""
        answer = self.stream.answers[-1]
        assert isinstance(answer, EntryFailure), answer
        return answer


def table_stepper(logits: NDArray[np.float32], **options: Any) -> Stepper:
    """A stepper over a table."""
    max_context_tokens = options.pop("max_context_tokens", 256)
    return Stepper(TableTarget(logits, max_context_tokens=max_context_tokens), **options)

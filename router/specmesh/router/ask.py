"""What a replica is asked for and what becomes of it: by a session, or by a probe on nobody's behalf."""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from specmesh.router.block import ArrivingBlock
from specmesh.runtime.context import context_hash
from specmesh.runtime.types import DraftAsk, Rule, Sampling
from specmesh.runtime.wire import sampling_to_proto, token_chunks
from specmesh.v1.draft_service_pb2 import DraftOpenHeader, DraftServiceOpenRequest
from specmesh.v1.router_service_pb2 import SamplingParams

PROBE_SAMPLING = Sampling(temperature=0.0)


class Ending(Enum):
    """How the wait for a block ended."""

    COMPLETE = auto()
    CUT = auto()
    """At its deadline, or by a malformed piece."""
    FAILED = auto()
    CONTEXT_FULL = auto()
    """The draft's context is shorter than the session."""


class AskSource(Protocol):
    """What a replica needs of a session."""

    session_id: int
    traceparent: str
    sampling_message: SamplingParams
    """Of the ask below, made once."""

    @property
    def context(self) -> Sequence[int]:
        """Its tokens; only ever appended to."""

    def ask(
        self, delta_start: int, block_length: int, block_deadline_ms: int, *, want_scores: bool = False
    ) -> DraftAsk:
        """An entry at the session's present position with the context's tokens from `delta_start` on."""


@dataclass(slots=True)
class Ask:
    """One entry that waits for its answer."""

    source: AskSource
    block: ArrivingBlock
    done: asyncio.Future[Ending]
    deadline: float
    want_scores: bool = False
    opened: bool = False
    context: Context = field(default_factory=copy_context)
    """Of the task that asks: what is done for it elsewhere belongs to the same trace."""

    def finish(self, ending: Ending) -> None:
        """Wake the session, once."""
        if not self.done.done():
            self.done.set_result(ending)


def open_messages(source: AskSource, start: int, position: int) -> Iterator[DraftServiceOpenRequest]:
    """A session's context from `start` to `position`, as `Open` takes it."""
    header = DraftOpenHeader(session_id=source.session_id, start=start, length=position)
    for index, chunk in enumerate(token_chunks(source.context[start:position])):
        yield DraftServiceOpenRequest(header=header if index == 0 else None, token_ids=chunk)


class Probe:
    """A session of nobody: one token, one greedy draft. It says whether a replica answers, and nothing of a context."""

    def __init__(self) -> None:
        self.session_id = secrets.randbits(64)
        self.context: Sequence[int] = (0,)
        self.traceparent = ""
        self.sampling_message = sampling_to_proto(PROBE_SAMPLING)

    def ask(
        self, delta_start: int, block_length: int, block_deadline_ms: int, *, want_scores: bool = False
    ) -> DraftAsk:
        """The entry."""
        return DraftAsk(
            session_id=self.session_id,
            position=1,
            context_hash=context_hash(self.context),
            delta_token_ids=tuple(self.context[delta_start:]),
            block_length=block_length,
            sampling=PROBE_SAMPLING,
            rule=Rule.COUPLED,
            draft_key=0,
            block_deadline_ms=block_deadline_ms,
            want_scores=want_scores,
        )

"""One session as the verifier holds it: plain state, no clock, no tensors (specification 1.5, boundaries).

context   prompt tokens, then emitted tokens
position  length of the context
cached    tokens of the context whose keys and values are in the cache; position - 1 between steps
room      tokens that may still be emitted: up to `max_output_tokens`, and up to the end of the context
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specmesh.kernels.inputs import VerifyInput
from specmesh.runtime.rows import RowArrays
from specmesh.runtime.types import BlockRefusal, EntryFailure, FinishReason, Outcome, SessionSpec, StepResult

Answer = StepResult | EntryFailure
SessionKey = tuple[str, int]
"""A session belongs to the peer that opened it: (peer, session id)."""

Rank = tuple[int, int]
"""Who goes before whom when memory is short, lowest first: (-priority, arrival)."""

NEVER_NS = 1 << 62


class AnswerStream(Protocol):
    """Where the answers of one peer go."""

    peer: str

    def deliver(self, answers: Sequence[Answer]) -> None:
        """Called on the event loop, once per tick."""


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class Entry:
    """A block waiting for its tick; one that was refused has no tokens left. `rows` is empty when all are one-hot.

    `after`: it was sent ahead for this outcome. `run_count`: plain tokens that this entry still stands for; 0: no run.
    """

    stream: AnswerStream
    position: int
    token_ids: tuple[int, ...]
    rows: Sequence[RowArrays]
    refusal: BlockRefusal | None
    arrived_ns: int
    deadline_ns: int = NEVER_NS
    after: Outcome | None = None
    run_count: int = 0


@dataclass(slots=True)  # Not frozen, which takes three times as long: one is made per session and tick.
class Emission:
    """What a step adds to a text."""

    token_ids: tuple[int, ...]
    num_accepted: int
    num_drafted: int
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


class Session:
    """State of one session.

    `entry`: the block it waits to have verified, if any; `conditional`: blocks sent ahead, by the outcome of that step
    that they are for; `block`: what is to be verified of its entry, written anew for each tick. `seated`: it holds
    cache memory, for `held` tokens at least; `shareable_at`: with how many tokens cached others can share more.
    """

    __slots__ = (
        "_last_accepted", "block", "cached", "conditional", "context", "counts", "deadline_ns", "entry", "expires_ns",
        "held", "key", "limit", "rank", "seated", "shareable_at", "spec",
    )  # fmt: skip

    def __init__(
        self,
        spec: SessionSpec,
        *,
        max_context_tokens: int,
        now_ns: int,
        deadline_ns: int = NEVER_NS,
        rank: Rank = (0, 0),
    ) -> None:
        self.spec = spec
        self.rank = rank
        self.key: SessionKey = (spec.peer, spec.session_id)
        self.context = list(spec.context)
        self.cached = 0
        self.limit = context_limit(spec, max_context_tokens)
        self.counts = Counter(self.context) if spec.sampling.has_penalties else None
        self.block = VerifyInput(0, (), (), spec.sampling, spec.rule, spec.verify_key, self.counts)
        self.entry: Entry | None = None
        self.conditional: dict[Outcome, Entry] = {}
        self._last_accepted: int | None = None
        self.seated = False
        self.held = 0
        self.shareable_at = 0
        self.deadline_ns = deadline_ns
        self.touch(now_ns)

    @property
    def position(self) -> int:
        """Length of the verified context."""
        return len(self.context)

    @property
    def room(self) -> int:
        """Tokens that may still be emitted; at least 1 while the session lives."""
        return self.limit - len(self.context)

    @property
    def uncached(self) -> int:
        """Tokens of the context still to be fed; at least 1, the last one."""
        return len(self.context) - self.cached

    @property
    def last_outcome(self) -> Outcome | None:
        """Of the last step, if it did not end the text; None: there was none yet."""
        num_accepted = self._last_accepted
        if num_accepted is None:
            return None
        return Outcome(len(self.context) - num_accepted - 1, num_accepted, self.context[-1])

    @property
    def ends_ns(self) -> int:
        """When the session ends if nothing more is heard of it."""
        return min(self.expires_ns, self.deadline_ns)

    def touch(self, now_ns: int) -> None:
        """Start the lease again."""
        self.expires_ns = now_ns + self.spec.lease_ms * 1_000_000

    def take(self, entry: Entry) -> None:
        """Wait for a block to be verified, cut to the room there is: one more token always follows the accepted ones.

        Cut by length alone, which depends on nothing that was sampled, so the law is kept (specification 1.5).
        """
        usable = self.limit - len(self.context) - 1
        if len(entry.token_ids) > usable:
            entry = replace(entry, token_ids=entry.token_ids[:usable], rows=entry.rows[:usable])
        self.entry = entry

    def prefilled(self, num_tokens: int) -> None:
        """`num_tokens` more of the context are in the cache."""
        self.cached += num_tokens

    def commit(self, draft_token_ids: Sequence[int], num_accepted: int, next_token: int) -> Emission:
        """Take a step's outcome into the context, up to the first boundary.

        A stop token ends the text, also where the length ends it at the same token; it counts as output. What comes
        after a boundary is neither emitted nor counted.
        """
        context, num_drafted = self.context, len(draft_token_ids)
        tokens = (*draft_token_ids[:num_accepted], next_token)
        self._last_accepted = num_accepted
        if len(context) + num_accepted + 1 < self.limit and self.spec.stop_token_ids.isdisjoint(tokens):
            emission = Emission(tokens, num_accepted, num_drafted)
        else:
            emission = self._up_to_boundary(tokens, num_drafted)
        context += emission.token_ids
        self.cached = len(context) - 1
        if self.counts is not None:
            self.counts.update(emission.token_ids)
        return emission

    def _up_to_boundary(self, tokens: tuple[int, ...], num_drafted: int) -> Emission:
        """Of tokens of which one ends the text. None of what was drafted behind it was verified."""
        emitted, stop = tokens[: self.room], None
        for count, token in enumerate(emitted, 1):
            if token in self.spec.stop_token_ids:
                emitted, stop = emitted[:count], token
                break
        finish = FinishReason.LENGTH if stop is None else FinishReason.STOP
        size = len(emitted)
        return Emission(emitted, min(len(tokens) - 1, size), min(num_drafted, size), finish, stop)


def context_limit(spec: SessionSpec, max_context_tokens: int) -> int:
    """Length at which the session's context ends: prompt and `max_output_tokens`, or the target's limit."""
    return min(spec.prompt_length + spec.max_output_tokens, max_context_tokens)

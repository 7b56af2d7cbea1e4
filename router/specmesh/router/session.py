"""One generation request while it runs (pure): its context, keys, position and usage."""

from collections.abc import Callable
from dataclasses import dataclass, field

from specmesh.router.request import Plan
from specmesh.runtime.context import ContextHasher
from specmesh.runtime.types import DraftAsk, FinishReason, Rule, ServiceInfo, SessionSpec, StepResult
from specmesh.runtime.wire import sampling_to_proto

_UNBOUNDED = 1 << 30


@dataclass(slots=True)
class Usage:
    """What a request took. Output tokens are those of this stream, not of the one that it continues."""

    num_input: int
    num_cached_input: int = 0
    num_output: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    device_seconds: dict[str, float] = field(default_factory=dict)

    def add_device_time(self, pool: str, nanoseconds: float, batch_size: int) -> None:
        """Charge a share of a batch to a pool."""
        share = nanoseconds / max(batch_size, 1) / 1e9
        self.device_seconds[pool] = self.device_seconds.get(pool, 0.0) + share


class Session:
    """Context = prompt + continuation + emitted tokens; position = its length.

    The verify key goes to verifiers only. It is independent of the draft key, except under COUPLED, where both are
    the seed that everybody shares (specification 1.4).
    """

    def __init__(
        self,
        plan: Plan,
        *,
        session_id: int,
        target: ServiceInfo,
        draw_key: Callable[[], int],
        max_row: int = 0,
        traceparent: str = "",
        want_logprobs: bool = False,
        held_out: bool = False,
    ) -> None:
        """`want_logprobs`: of the emitted tokens, for a policy that sets scores against them.

        `held_out`: no draft takes part, so that what drafts gain is known by comparison.
        """
        self.plan = plan
        self.max_row = max_row
        self.model_digest = target.model_digest
        """The model it began with, and the only one that it may go on with."""
        limits = [limit for limit in (target.max_block_length or None, plan.max_block_length) if limit is not None]
        self._max_block_length = 0 if held_out else min(limits, default=_UNBOUNDED)
        self.held_out = held_out
        self.leaves_drafts_to_policy = plan.leaves_drafts_to_policy
        self.session_id = session_id
        self.traceparent = traceparent
        # One-hot laws need none, and greedy steps are quicker without.
        self._needs_logprobs = want_logprobs and not plan.sampling.greedy and plan.rule is not Rule.COUPLED
        self.sampling_message = sampling_to_proto(plan.sampling)
        self.context: list[int] = [*plan.prompt, *plan.continuation]
        self.finish_reason: FinishReason | None = None
        self.usage = Usage(num_input=len(plan.prompt))
        self.verify_key, self.draft_key = _keys(plan, draw_key)
        self._hasher = ContextHasher(self.context)
        self._end = min(len(plan.prompt) + plan.max_output_tokens, target.max_context_tokens)

    @property
    def position(self) -> int:
        """Length of the verified context in tokens."""
        return len(self.context)

    @property
    def output_offset(self) -> int:
        """Index in the output of the next token, continuation included."""
        return len(self.context) - len(self.plan.prompt)

    @property
    def seed(self) -> int | None:
        """The seed in use; other rules than COUPLED promise no draw."""
        return self.verify_key if self.plan.rule is Rule.COUPLED else None

    @property
    def max_block_length(self) -> int:
        """Drafts of which none can lie beyond the end; the step's last token is the target's own."""
        return min(max(self.num_left - 1, 0), self._max_block_length)

    @property
    def num_left(self) -> int:
        """Tokens until the text ends by its length."""
        return self._end - self.position

    def ended_by_continuation(self) -> FinishReason | None:
        """Why nothing is left to generate after what the client already has; None when something is."""
        if self.plan.continuation and self.plan.continuation[-1] in self.plan.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.position >= self._end else None

    def commit(self, result: StepResult) -> None:
        """Take a verified step: what it emitted is context from now on."""
        self.context.extend(result.token_ids)
        self._hasher.extend(result.token_ids)
        at_end = FinishReason.LENGTH if self.position >= self._end else None
        self.finish_reason = result.finish_reason or at_end
        self.usage.num_output += len(result.token_ids)
        self.usage.num_drafted += result.num_drafted
        self.usage.num_accepted += result.num_accepted
        self.usage.num_steps += 1

    def ask(
        self, delta_start: int, block_length: int, block_deadline_ms: int, *, want_scores: bool = False
    ) -> DraftAsk:
        """What a draft is asked; it gets the context's tokens from `delta_start` on, and never the verify key."""
        return DraftAsk(
            session_id=self.session_id,
            position=len(self.context),
            context_hash=self._hasher.value(),
            delta_token_ids=tuple(self.context[delta_start:]),
            block_length=block_length,
            sampling=self.plan.sampling,
            rule=self.plan.rule,
            draft_key=self.draft_key,
            max_row=self.max_row,
            block_deadline_ms=block_deadline_ms,
            want_scores=want_scores,
        )

    def spec(self, *, session_id: int, peer: str, lease_ms: int, priority: int) -> SessionSpec:
        """The session as a verifier opens it, at the present position."""
        plan = self.plan
        return SessionSpec(
            session_id=session_id,
            peer=peer,
            context=tuple(self.context),
            prompt_length=len(plan.prompt),
            sampling=plan.sampling,
            rule=plan.rule,
            verify_key=self.verify_key,
            draft_key=self.draft_key,
            max_output_tokens=plan.max_output_tokens,
            stop_token_ids=plan.stop_token_ids,
            lease_ms=lease_ms,
            logprobs=0 if plan.logprobs is None and self._needs_logprobs else plan.logprobs,
            cache_salt=plan.cache_salt,
            priority=priority,
        )


def _keys(plan: Plan, draw_key: Callable[[], int]) -> tuple[int, int]:
    if plan.rule is Rule.COUPLED:
        seed = draw_key() if plan.seed is None else plan.seed
        return seed, seed
    return draw_key(), draw_key()


def cut_result(result: StepResult, num_tokens: int) -> StepResult:
    """The step as if the text had ended with its first `num_tokens` tokens: nothing after them counts anywhere."""
    kept = min(result.num_accepted, num_tokens)
    whole = num_tokens > result.num_accepted
    return StepResult(
        session_id=result.session_id,
        position=result.position,
        token_ids=result.token_ids[:num_tokens],
        num_accepted=kept,
        num_drafted=result.num_drafted if whole else kept,
        logprobs=result.logprobs[:num_tokens],
        finish_reason=FinishReason.STOP,
        stop_token_id=None,
        block_refusal=result.block_refusal,
        timing=result.timing,
        batch_size=result.batch_size,
    )

"""The public API: translation only. A request becomes a plan, a plan a session, a session's output events."""

import asyncio
import logging
import math
import random
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio

from specmesh.router.callers import CLIENT, OPERATOR, Caller, Callers
from specmesh.router.config import RouterConfig
from specmesh.router.generation import generate
from specmesh.router.limits import CallerQuota, Gate
from specmesh.router.listing import list_arms
from specmesh.router.offer import Offer
from specmesh.router.output import Output
from specmesh.router.registration import Target
from specmesh.router.request import Plan, plan_request
from specmesh.router.session import Session
from specmesh.router.step import Mesh
from specmesh.router.text import Tokenizer
from specmesh.router.token_quota import TokenQuota
from specmesh.router.watching import WatchedRequest
from specmesh.runtime.errors import InvalidValue, MeshError, NoVerifier, UnknownModel
from specmesh.runtime.logs import log_context
from specmesh.runtime.philox import draw_key
from specmesh.runtime.telemetry.spans import current_span, parse_traceparent
from specmesh.runtime.tls import peer_identities
from specmesh.runtime.unknown_fields import refuse_unknown_fields
from specmesh.runtime.wire import RULE_TO_PROTO
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1 import router_service_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    # Generic in its stub only.
    Context = grpc.aio.ServicerContext[Any, Any]

INLINE_TEXT_BYTES = 16 * 1024
"""Longer texts, and chats, are tokenized in a thread."""
TEXT_FEATURES = ("text", "chat", "stop.strings")
FEATURES = (
    "tokens", "continuation_token_ids", "sampling.temperature", "sampling.top_p", "sampling.top_k", "sampling.min_p",
    "sampling.repetition_penalty", "sampling.presence_penalty", "sampling.frequency_penalty", "sampling.logit_bias",
    "sampling.seed", "sampling.rule", "stop.max_output_tokens", "stop.token_ids", "stop.ignore_eos", "draft.mode",
    "draft.arms", "draft.max_block_length", "output.logprobs", "output.min_chunk_interval", "output.unary",
    "output.step_reports", "priority", "workload",
)  # fmt: skip

_log = logging.getLogger(__name__)


class RouterServicer(pb_grpc.RouterServiceServicer):
    """Generate, ListModels, ListDrafts."""

    def __init__(
        self,
        config: RouterConfig,
        mesh: Mesh,
        gate: Gate,
        *,
        draw: Callable[[], int] = draw_key,
        lot: Callable[[], float] = random.random,
    ) -> None:
        """`gate` bounds the sessions; `draw` gives 64-bit keys, `lot` numbers in [0, 1) that decide who is held out."""
        self._config = config
        self._mesh = mesh
        self._gate = gate
        self._draw = draw
        self._lot = lot
        self._callers = Callers(config)
        self._quota = CallerQuota(config.limits.retry_seconds)
        self._tokens = TokenQuota()
        self._untrusted = frozenset(pool.name for pool in config.pools if pool.trust == "untrusted")
        self.tokenizer: Tokenizer | None = None
        """Of the target served; None when its ids have no text."""

    async def Generate(  # noqa: N802  the name is the method's on the wire
        self, request: pb.GenerateRequest, context: "Context"
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """One generation. Raises a `MeshError` that says what is wrong with the request, or why it cannot be served."""
        operation = "chat" if request.HasField("chat") else "text_completion"
        with self._mesh.watch.request(operation) as watched:
            async with aclosing(self._generate(request, context, watched)) as events:
                async for event in events:
                    watched.event()
                    yield event

    async def _generate(
        self, request: pb.GenerateRequest, context: "Context", watched: WatchedRequest
    ) -> AsyncGenerator[pb.GenerateResponse]:
        metadata = _metadata(context)
        caller = self._identify(context)
        caller.require(CLIENT)
        until = self._deadline(context)
        offer = self._offer()
        plan = await _plan(request, caller, offer)
        traceparent, trace_id = _trace(metadata)
        log = log_context(request_id=plan.request_id, trace_id=trace_id)
        with self._quota.hold(caller), self._tokens.hold(caller, plan.max_tokens) as held, log:
            async with self._gate.turn(plan.priority):
                session = self._session(plan, offer.target, traceparent)
                held.used = partial(_tokens_used, session)
                watched.serve(session, caller.name, offer.target.name)
                async with aclosing(self._run(session, offer, until)) as events:
                    async for event in events:
                        yield event
            _log.info("generated", extra=_figures(session))

    async def _run(self, session: Session, offer: Offer, until: float) -> AsyncGenerator[pb.GenerateResponse]:
        """The session's events, while its steps run beside them; both end together."""
        text = offer.text.stream(session.plan.stop_strings) if offer.text else None
        config = self._config
        limits = config.limits.max_unread_bytes, config.server.max_message_bytes
        output = Output(session, text, _started(session, offer.target), *limits)
        steps = asyncio.create_task(generate(session, self._mesh, output, until))
        steps.add_done_callback(lambda task: hand_failure(output, task))
        try:
            async with aclosing(output.events()) as events:
                async for event in events:
                    yield event
        finally:
            steps.cancel()
            await asyncio.gather(steps, return_exceptions=True)

    def _identify(self, context: "Context") -> Caller:
        return self._callers.identify(_metadata(context), context.peer(), peer_identities(context.auth_context()))

    def _offer(self) -> Offer:
        target = self._mesh.verifiers.target
        if target is None:
            raise NoVerifier("no verifier has been reached yet")
        return Offer(
            target=target,
            text=self.tokenizer,
            arms=tuple(record.facts for record in self._mesh.drafts.arms.values()),
            untrusted_pools=self._untrusted,
            workloads=self._config.workloads,
            max_text_bytes=self._config.limits.max_text_bytes,
            max_messages=self._config.limits.max_messages,
        )

    def _deadline(self, context: "Context") -> float:
        """When the client stops waiting, on the monotonic clock."""
        remaining = context.time_remaining()
        if remaining is None:
            if self._config.limits.require_deadline:
                raise InvalidValue("deadline", "a gRPC deadline is required")
            return math.inf
        return time.monotonic() + float(remaining)

    def _session(self, plan: Plan, target: Target, traceparent: str) -> Session:
        return Session(
            plan,
            session_id=secrets.randbits(64),
            target=target.info,
            draw_key=self._draw,
            max_row=self._config.drafts.max_row,
            traceparent=traceparent,
            want_logprobs=self._mesh.policy.wants_scores,
            held_out=plan.leaves_drafts_to_policy and self._lot() < self._config.sessions.hold_out,
        )

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: "Context"
    ) -> pb.ListModelsResponse:
        """The target served."""
        refuse_unknown_fields(request)
        self._identify(context)
        target = self._offer().target
        model = pb.Model(
            name=target.name,
            fingerprint=target.fingerprint,
            max_context_tokens=target.info.max_context_tokens,
            vocabulary_size=target.info.vocabulary_size,
            features=sorted(FEATURES + (TEXT_FEATURES if self.tokenizer else ())),
        )
        return pb.ListModelsResponse(models=[model])

    async def ListDrafts(  # noqa: N802
        self, request: pb.ListDraftsRequest, context: "Context"
    ) -> pb.ListDraftsResponse:
        """Every arm. Needs the operator role."""
        refuse_unknown_fields(request)
        self._identify(context).require(OPERATOR)
        if request.model not in ("", self._offer().target.name):
            raise UnknownModel("model: not served here; ListModels names what is", field="model")
        return pb.ListDraftsResponse(arms=list_arms(self._mesh.drafts, time.monotonic()))


async def _plan(request: pb.GenerateRequest, caller: Caller, offer: Offer) -> Plan:
    if request.HasField("chat") or len(request.text) > INLINE_TEXT_BYTES:
        return await asyncio.to_thread(plan_request, request, caller, offer)
    return plan_request(request, caller, offer)


def _started(session: Session, target: Target) -> pb.GenerationStarted:
    return pb.GenerationStarted(
        request_id=session.plan.request_id,
        model=target.name,
        model_fingerprint=target.fingerprint,
        seed=session.seed,
        rule=RULE_TO_PROTO[session.plan.rule],
    )


def hand_failure(output: Output, steps: "asyncio.Task[Any]") -> None:
    """Hand the failure of the steps to whoever waits for the output: nothing that ends them may leave it waiting."""
    if steps.cancelled():
        output.fail(MeshError("the steps of this request were cut off"))
    elif (error := steps.exception()) is not None:
        output.fail(error)


def _metadata(context: "Context") -> Mapping[str, str | bytes]:
    return dict(context.invocation_metadata() or ())


def _trace(metadata: Mapping[str, str | bytes]) -> tuple[str, str]:
    """What entries carry of a W3C context until steps have spans of their own, and the trace id; both may be empty."""
    span = current_span()
    if span is not None:
        return "", f"{span.trace_id:032x}"
    context = parse_traceparent(metadata.get("traceparent"))
    return (context.traceparent, f"{context.trace_id:032x}") if context else ("", "")


def _tokens_used(session: Session) -> int:
    return session.usage.num_input + session.usage.num_output if session.usage.num_steps else 0


def _figures(session: Session) -> dict[str, object]:
    usage = session.usage
    return {
        "finish_reason": session.finish_reason.value if session.finish_reason else "",
        "rule": session.plan.rule.value,
        "num_input": usage.num_input,
        "num_output": usage.num_output,
        "num_drafted": usage.num_drafted,
        "num_accepted": usage.num_accepted,
        "num_steps": usage.num_steps,
        "held_out": session.held_out,
    }

"""The verifiers as the step sees them: a seat for each session, and a step that survives the loss of a verifier."""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from specmesh.router.affinity import PrefixAffinity
from specmesh.router.config import RouterConfig
from specmesh.router.discovery import Fleet, Resolve, resolve_name
from specmesh.router.registration import Target, contract_fault
from specmesh.router.session import Session
from specmesh.router.verifier_replica import Introduction, TokenizerFiles, VerifierLost, VerifierReplica
from specmesh.runtime.contract import CONTRACT_VERSION
from specmesh.runtime.errors import DeadlinePassed, MeshError, NonFiniteLogits, NoVerifier, Overloaded
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.types import Block, EntryErrorReason, EntryFailure, StepResult

_log = logging.getLogger(__name__)

VERIFIER_POOL = "verifier"
"""Name of the verifiers in `Usage.pools`."""
RESUME_PRIORITY = 1000
"""Above every request's: a session that lost its verifier goes before all new ones."""
_MOST_MS = (1 << 32) - 1
ELSEWHERE = frozenset({EntryErrorReason.UNKNOWN_SESSION, EntryErrorReason.CONTEXT_MISMATCH, EntryErrorReason.DRAINING})
"""Failures of an entry after which the session is opened again and the step repeated."""


@dataclass(slots=True)
class Seat:
    """Where a session sits, under an id of its own there, and until when its client waits."""

    replica: VerifierReplica
    session_id: int
    until: float
    num_resumes: int = 0


class Verifiers:
    """All verifiers of one model. `run` keeps them connected until cancelled."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        connect: Callable[[str], grpc.aio.Channel],
        retarget: Callable[[Target, TokenizerFiles], None],
        resolve: Resolve = resolve_name,
    ) -> None:
        """`retarget` hears of the model served, at first and whenever every verifier of the old one is gone."""
        self._config = config
        self._retarget = retarget
        self._peer = secrets.token_hex(16)
        self._seats: dict[int, Seat] = {}
        self._changed = asyncio.Event()
        self._affinity = PrefixAffinity()
        self.target: Target | None = None
        self.ready = asyncio.Event()
        """Set once the first verifier has been registered."""
        self._fleet = Fleet(
            config.verifiers,
            lambda address: VerifierReplica(
                address,
                peer=self._peer,
                connect=connect,
                registry=self,
                max_concurrent_opens=config.sessions.max_concurrent_opens,
            ),
            interval=config.discovery_seconds,
            resolve=resolve,
        )

    async def run(self) -> None:
        """Until cancelled."""
        await self._fleet.run()

    def replicas(self) -> list[VerifierReplica]:
        """Every verifier, in whatever state."""
        return list(self._fleet.members.values())

    def admit(self, introduction: Introduction) -> str:
        """Take a verifier of the model served; the first one decides which that is. Why not, if not."""
        info = introduction.info
        fault = contract_fault(info)
        if fault:
            return fault
        served = self.target.info if self.target else None
        if served is None or (info.model_digest != served.model_digest and not self._any_connected()):
            self.target = _target(introduction, self._config.model_name)
            self._retarget(self.target, introduction.tokenizer)
        elif (info.model_digest, info.tokenizer_digest) != (served.model_digest, served.tokenizer_digest):
            return f"serves model {info.model_digest[:8]}, this router serves {served.model_digest[:8]}"
        self.ready.set()
        self._changed.set()
        return ""

    def _any_connected(self) -> bool:
        return any(replica.connected for replica in self.replicas())

    async def open(self, session: Session, until: float) -> None:
        """Find a seat for a new session. `until` is its client's deadline. Raises `NoVerifier`, `Overloaded`, ..."""
        await self._sit(session, until, session.plan.priority, wait_seconds=0.0, num_resumes=0)

    def running(self, session: Session) -> bool:
        """Whether a run is under way: the next step has been asked for, and is a plain one."""
        seat = self._seats[session.session_id]
        return seat.replica.running(seat.session_id)

    async def verify(self, session: Session, block: Block) -> StepResult:
        """The outcome of a step. A lost verifier costs time: the session resumes elsewhere and the step is repeated.

        Repeating is exact, because the loss did not depend on the outcome. Raises a `MeshError` when no verifier is
        left or the session has ended there.
        """
        while True:
            seat = self._seats[session.session_id]
            try:
                outcome = await seat.replica.verify(
                    seat.session_id, block, remaining_ms=remaining_ms(seat.until), traceparent=session.traceparent
                )
            except VerifierLost:
                await self._resume(session, seat)
                continue
            if isinstance(outcome, StepResult):
                timing = outcome.timing
                session.usage.add_device_time(VERIFIER_POOL, timing.forward_ns + timing.verify_ns, outcome.batch_size)
                return outcome
            if outcome.reason not in ELSEWHERE:
                raise _failure(outcome)
            seat.replica.draining |= outcome.reason is EntryErrorReason.DRAINING
            await self._resume(session, seat)

    async def _resume(self, session: Session, seat: Seat) -> None:
        limit = self._config.sessions.max_resumes
        if seat.num_resumes >= limit:
            raise NoVerifier(f"sessions.max_resumes: the session lost {limit + 1} verifiers")
        self.close(session)
        _log.info("session lost its verifier and waits for a place on one", extra={"position": session.position})
        await self._sit(
            session,
            seat.until,
            RESUME_PRIORITY,
            wait_seconds=self._config.sessions.resume_seconds,
            num_resumes=seat.num_resumes + 1,
        )

    async def _sit(
        self, session: Session, until: float, priority: int, *, wait_seconds: float, num_resumes: int
    ) -> None:
        """Open on the least loaded verifier; on the next one when that one is lost or full."""
        give_up = time.monotonic() + wait_seconds
        refusal: MeshError = NoVerifier("no verifier can be reached")
        tried: set[VerifierReplica] = set()
        while True:
            replica = self._pick(session, tried)
            if replica is None:
                if time.monotonic() >= give_up:
                    raise refusal
                tried.clear()
                await self._wait_for_change(give_up)
                continue
            tried.add(replica)
            seat = Seat(replica, secrets.randbits(64), until, num_resumes)
            async with replica.opens.turn(priority):
                try:
                    await self._open_at(session, seat, priority)
                except VerifierLost:
                    continue
                except grpc.aio.AioRpcError as error:
                    refusal = _refusal(error)
                    continue
            return

    async def _open_at(self, session: Session, seat: Seat, priority: int) -> None:
        """Sit down first: whatever happens from here on, `close` frees what the verifier may have reserved."""
        self._seats[session.session_id] = seat
        seat.replica.num_sessions += 1
        lease_ms = self._config.sessions.lease_ms
        spec = session.spec(session_id=seat.session_id, peer=self._peer, lease_ms=lease_ms, priority=priority)
        try:
            session.usage.num_cached_input = await seat.replica.open(spec, remaining_ms(seat.until))
        except BaseException:
            self.close(session)
            raise
        self._remember(session, seat)

    def _remember(self, session: Session, seat: Seat) -> None:
        """Whoever begins with the same context does well to sit there too."""
        if len(self._fleet.members) > 1:
            self._affinity.note(seat.replica.address, session.plan.cache_salt, session.context)

    def _pick(self, session: Session, tried: set[VerifierReplica]) -> VerifierReplica | None:
        """The least loaded verifier, or one nearly so that may hold the session's beginning."""
        model = session.model_digest
        free = {
            each.address: each
            for each in self.replicas()
            if each.connected and not each.draining and each.model_digest == model and each not in tried
        }
        least = min(free.values(), key=lambda each: each.num_sessions, default=None)
        if least is None or len(free) == 1:
            return least
        known = free.get(self._affinity.find(session.plan.cache_salt, session.context) or "")
        slack = self._config.sessions.prefix_slack
        return known if known is not None and known.num_sessions <= least.num_sessions + slack else least

    async def _wait_for_change(self, until: float) -> None:
        self._changed.clear()
        waiting = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait({waiting}, timeout=max(until - time.monotonic(), 0.0))
        waiting.cancel()

    def close(self, session: Session) -> None:
        """Free the session's seat."""
        seat = self._seats.pop(session.session_id, None)
        if seat is not None:
            seat.replica.num_sessions -= 1
            seat.replica.close(seat.session_id)
            self._remember(session, seat)


def remaining_ms(until: float) -> int:
    """Whole milliseconds to a moment of the monotonic clock, from 1 to what an entry can say; 0 when it is never."""
    return 0 if until == float("inf") else min(max(round((until - time.monotonic()) * 1000), 1), _MOST_MS)


def _target(introduction: Introduction, model_name: str) -> Target:
    info = introduction.info
    law = f"{info.model_digest}:{info.tokenizer_digest}:{CONTRACT_VERSION}"
    return Target(
        info=info,
        name=model_name or info.model_name,
        eos_token_ids=introduction.tokenizer.eos_token_ids,
        fingerprint=hashlib.sha256(law.encode()).hexdigest(),
    )


def _failure(failure: EntryFailure) -> MeshError:
    if failure.reason is EntryErrorReason.NON_FINITE_LOGITS:
        return NonFiniteLogits(failure.message)
    if failure.reason is EntryErrorReason.DEADLINE_EXCEEDED:
        return DeadlinePassed(failure.message)
    if failure.reason is EntryErrorReason.OVERLOADED:
        return Overloaded(failure.message)
    return MeshError(f"the verifier could not do the step: {failure.reason.value}")


def _refusal(error: grpc.aio.AioRpcError) -> MeshError:
    """What a failed `Open` means for the client; raises it at once when no other verifier would answer otherwise."""
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return NoVerifier("no verifier can be reached")
    refusal = from_rpc_error(error)
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise refusal from None
    return refusal

"""One verifier: its connection, the sessions that sit there, the steps that wait for their outcome."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import grpc.aio

from specmesh.router.introduction import VERIFIER, WrongService, or_wrong_service
from specmesh.router.limits import Gate
from specmesh.router.link import Link, StreamEnded, lost_because
from specmesh.router.presence import Presence
from specmesh.router.registration import contract_fault
from specmesh.router.run import Answers
from specmesh.runtime.contract import PEER_METADATA_KEY
from specmesh.runtime.errors import Overloaded
from specmesh.runtime.types import Block, EntryFailure, ServiceInfo, SessionSpec, StepResult
from specmesh.runtime.wire import (
    block_to_entry,
    entry_failure_from_proto,
    service_info_from_proto,
    step_result_from_entry,
    verify_open_messages,
)
from specmesh.v1 import verifier_service_pb2 as pb
from specmesh.v1.verifier_service_pb2_grpc import VerifierServiceStub

_log = logging.getLogger(__name__)

REGISTRATION_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0


class VerifierLost(Exception):
    """The connection is gone; whether the step was done is not known, and did not depend on its outcome."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a verifier sends of its tokenizer; `tokenizer_json` is empty when ids have no text."""

    tokenizer_json: bytes
    chat_template: str
    special_tokens: dict[str, str]
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a verifier says of itself when it is registered."""

    info: ServiceInfo
    tokenizer: TokenizerFiles


class Registry(Protocol):
    """Decides whether a verifier may serve."""

    def admit(self, introduction: Introduction) -> str:
        """Why not; empty when it may."""


class VerifierReplica:
    """Connects, registers, carries steps; reconnects until it is cancelled."""

    def __init__(
        self,
        address: str,
        *,
        peer: str,
        connect: Callable[[str], grpc.aio.Channel],
        registry: Registry,
        max_concurrent_opens: int,
    ) -> None:
        """`peer` names this router process: the same on the stream and on every `Open`."""
        self.address = address
        self.opens = Gate("sessions.max_concurrent_opens", max_concurrent_opens, None)
        """Contexts on their way here; who waits is bounded by the router's sessions."""
        self.num_sessions = 0
        self.draining = False
        self.model_digest = ""
        self.fault = "not connected yet"
        """Why no session can sit here; empty when one can."""
        self._peer = peer
        self._connect = connect
        self._registry = registry
        self._link: Link[pb.VerifyRequestEntry] | None = None
        self._stub: VerifierServiceStub | None = None
        self._waiting: dict[int, Answers] = {}
        self._longest_run = 0
        self._orphans: set[int] = set()
        self._pause = FIRST_PAUSE_SECONDS
        self._presence = Presence("verifier", address=address)

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._link is not None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with self._connect(self.address) as channel:
                    await self._serve(channel)
            except (grpc.aio.AioRpcError, StreamEnded) as error:
                self.fault = lost_because(error)
                self._presence.out(self.fault)
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        self._stub = VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            introduction = await self._introduce(channel, self._stub)
        except WrongService as error:
            self._does_not_fit(logging.WARNING, str(error))
            return
        self.model_digest, self._longest_run = introduction.info.model_digest, introduction.info.max_run_tokens
        if fault := self._registry.admit(introduction):
            self._does_not_fit(logging.ERROR, fault)
            return
        self.fault = ""
        call = self._stub.Verify(metadata=((PEER_METADATA_KEY, self._peer),))
        self._link = Link(call, _frame, self._receive)
        self.draining, self._pause = False, FIRST_PAUSE_SECONDS
        self._close_orphans()
        self._presence.ready()
        try:
            await self._link.run()
        finally:
            self._link = None
            for answers in self._waiting.values():
                answers.lose(VerifierLost(self.address))

    def _does_not_fit(self, level: int, fault: str) -> None:
        before, self.fault = self.fault, fault
        if fault != before:
            _log.log(level, "verifier is incompatible", extra={"address": self.address, "reason": fault})

    async def _introduce(self, channel: grpc.aio.Channel, stub: VerifierServiceStub) -> Introduction:
        request = pb.VerifierServiceGetInfoRequest(want_vocabulary=True)
        asked = stub.GetInfo(request, timeout=REGISTRATION_SECONDS)
        response = await or_wrong_service(channel, asked, expected=VERIFIER)
        info = service_info_from_proto(response.info)
        if contract_fault(info):
            return Introduction(info, TokenizerFiles(b"", "", {}, frozenset()))
        call = stub.GetTokenizer(pb.VerifierServiceGetTokenizerRequest(), timeout=REGISTRATION_SECONDS)
        chunks = [chunk async for chunk in call]
        first = chunks[0] if chunks else pb.VerifierServiceGetTokenizerResponse()
        tokenizer = TokenizerFiles(
            tokenizer_json=b"".join(chunk.tokenizer_json for chunk in chunks),
            chat_template=first.chat_template,
            special_tokens=dict(first.special_tokens),
            eos_token_ids=frozenset(response.eos_token_ids),
        )
        return Introduction(info, tokenizer)

    async def open(self, spec: SessionSpec, remaining_ms: int) -> int:
        """Open or resume a session; tokens found in the prefix cache. Raises `VerifierLost`, `AioRpcError`."""
        stub = self._stub
        if stub is None or self._link is None:
            raise VerifierLost(self.address)
        try:
            response = await stub.Open(verify_open_messages(spec, remaining_ms))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody has cancelled this session: the connection was given up, and with it every call in flight.
            raise VerifierLost(self.address) from None
        return int(response.cached_token_count)

    async def verify(
        self, session_id: int, block: Block, *, remaining_ms: int, traceparent: str
    ) -> StepResult | EntryFailure:
        """The outcome of a step; within a run the next one, of a step that was asked for with the first.

        Raises `VerifierLost`, `Overloaded`.
        """
        answers = self._waiting.get(session_id)
        try:
            if answers is None:
                answers = self._ask(session_id, block, remaining_ms=remaining_ms, traceparent=traceparent)
            outcome = await answers.take()
        except BaseException:
            self._waiting.pop(session_id, None)
            raise
        if not answers.unread:
            self._waiting.pop(session_id, None)
        return outcome

    def _ask(self, session_id: int, block: Block, *, remaining_ms: int, traceparent: str) -> Answers:
        if self._link is None:
            raise VerifierLost(self.address)
        count = min(block.run_count, self._longest_run)
        if count <= 1:
            count = 0
        if count != block.run_count:
            block = replace(block, run_count=count)
        answers = self._waiting[session_id] = Answers(block.position, max(count, 1))
        self._link.send(block_to_entry(session_id, block, remaining_ms=remaining_ms, traceparent=traceparent))
        return answers

    def running(self, session_id: int) -> bool:
        """Between two steps of a session: whether the next one has been asked for already."""
        return session_id in self._waiting

    @property
    def num_waiting(self) -> int:
        """Sessions that have not had all their answers."""
        return len(self._waiting)

    def close(self, session_id: int) -> None:
        """Free what the session holds: now, or when the stream is back if that is before its lease ends."""
        self._waiting.pop(session_id, None)
        if self._link is None:
            self._orphans.add(session_id)
            return
        try:
            self._link.send(pb.VerifyRequestEntry(session_id=session_id, close=True))
        except Overloaded:
            _log.warning(
                "verifier does not read its stream; the lease ends the session", extra={"address": self.address}
            )

    def _close_orphans(self) -> None:
        for session_id in self._orphans:
            self.close(session_id)
        self._orphans.clear()

    def _receive(self, frame: pb.VerifyResponse) -> None:
        self.draining |= frame.draining
        for entry in frame.entries:
            answers = self._waiting.get(entry.session_id)
            if answers is None:
                continue
            if entry.HasField("error"):
                answers.receive(entry_failure_from_proto(entry.session_id, entry.position, entry.error))
            else:
                answers.receive(step_result_from_entry(entry))


def _frame(entries: list[pb.VerifyRequestEntry]) -> pb.VerifyRequest:
    return pb.VerifyRequest(entries=entries)

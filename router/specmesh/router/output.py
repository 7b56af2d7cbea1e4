"""The output of one stream between the step that makes it and the client that reads it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from specmesh.router.session import Session, Usage, cut_result
from specmesh.router.text import TextStream
from specmesh.runtime.errors import InvalidValue
from specmesh.runtime.streams import DEFAULT_MAX_MESSAGE_BYTES
from specmesh.runtime.types import FinishReason, StepResult
from specmesh.runtime.wire import FINISH_TO_PROTO, logprob_to_proto
from specmesh.v1 import router_service_pb2 as pb


class Output:
    """Gathers what steps emit until the client takes it; bounded, so that a client that does not read holds its own
    session only. `started` leaves with the first token, never before.
    """

    def __init__(
        self,
        session: Session,
        text: TextStream | None,
        started: pb.GenerationStarted,
        max_unread_bytes: int,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        """Half a message is unread at most, so that one holds it with the step that comes on top."""
        plan = session.plan
        self._session = session
        self._text = text
        self._started: pb.GenerationStarted | None = started
        self._max_unread_bytes = min(max_unread_bytes, max_message_bytes // 2)
        self._max_message_bytes = max_message_bytes
        self._unary = plan.unary
        self._least_bytes = 0
        self._interval = plan.min_chunk_interval
        self._due = 0.0
        self._fresh_text = ""
        self._delta: pb.OutputDelta | None = None
        self._finished: pb.GenerationFinished | None = None
        self._error: BaseException | None = None
        self._something = asyncio.Event()
        self._ended = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.stop_matched = ""
        if text is not None and plan.continuation:
            # The client has these tokens and the text that came with them; what was held back it still gets.
            self.stop_matched = text.push(plan.continuation).stop or ""

    def cut_at_stop(self, result: StepResult) -> StepResult:
        """Take the text of a step; the step, cut after the token that completed a stop string if one did."""
        if result.stop_token_id is not None:
            self.stop_matched = str(result.stop_token_id)
        if self._text is None:
            return result
        shown = result.token_ids if result.stop_token_id is None else result.token_ids[:-1]
        piece = self._text.push(shown)
        self._fresh_text = piece.text
        if piece.stop is None:
            return result
        self.stop_matched = piece.stop
        return cut_result(result, piece.num_tokens)

    def add(self, result: StepResult, report: pb.StepReport | None) -> None:
        """Queue what a committed step emitted."""
        delta = self._delta
        if delta is None:
            offset = self._session.output_offset - len(result.token_ids)
            delta = self._delta = pb.OutputDelta(output_offset=offset)
        delta.token_ids.extend(result.token_ids)
        if self._fresh_text:
            delta.text += self._fresh_text
        wanted = result.logprobs and self._session.plan.logprobs is not None  # else the policy wanted them
        logprobs = [logprob_to_proto(logprob) for logprob in result.logprobs] if wanted else []
        delta.logprobs.extend(logprobs)
        if report is not None:
            delta.steps.append(report)
        if self._unary:
            self._least_bytes += _least_bytes(result.token_ids, self._fresh_text, logprobs, report)
        elif delta.ByteSize() > self._max_unread_bytes:
            self._room.clear()
        # In the loop's next turn: the next step's entry leaves before the client's delta does.
        asyncio.get_running_loop().call_soon(self._something.set)

    async def room(self) -> None:
        """Wait until the client has read enough. Raises `InvalidValue` when a unary output is too large already."""
        if self._least_bytes > self._max_message_bytes:
            raise self._too_large(f"at least {self._least_bytes}")
        if not self._room.is_set():
            await self._room.wait()

    def finish(self, reason: FinishReason) -> None:
        """The text is complete."""
        held = self._text.finish() if self._text is not None else ""
        if self._text is not None and self._text.stop is not None:
            reason, self.stop_matched = FinishReason.STOP, self._text.stop
        if held:
            if self._delta is None:
                self._delta = pb.OutputDelta(output_offset=self._session.output_offset)
            self._delta.text += held
        self._finished = pb.GenerationFinished(
            finish_reason=FINISH_TO_PROTO[reason],
            stop_matched=self.stop_matched,
            usage=usage_to_proto(self._session.usage),
        )
        self._end()

    def fail(self, error: BaseException) -> None:
        """Nothing more will come; what has been emitted still reaches a client that streams."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self._ended.set()
        self._something.set()

    async def events(self) -> AsyncGenerator[pb.GenerateResponse]:
        """Everything the client gets, in order. Raises what `fail` was given."""
        while True:
            await self._until_due()
            ended, delta = self._ended.is_set(), self._take()
            if self._error is not None and (self._unary or delta is None):
                raise self._error
            response = None if delta is None else self._response(delta)
            if self._started is not None and (delta is not None or ended):
                yield pb.GenerateResponse(started=self._started)
                self._started = None
            if response is not None:
                yield response
            if self._error is not None:
                raise self._error
            if ended:
                yield pb.GenerateResponse(finished=self._finished)
                return

    def _response(self, delta: pb.OutputDelta) -> pb.GenerateResponse:
        """Raises `InvalidValue` for one that no message can hold: streamed ones are far below that."""
        response = pb.GenerateResponse(delta=delta)
        if self._unary and (size := response.ByteSize()) > self._max_message_bytes:
            raise self._too_large(f"{size}")
        return response

    def _too_large(self, size: str) -> InvalidValue:
        limit = f"server.max_message_bytes is {self._max_message_bytes}"
        return InvalidValue("output.unary", f"the output has {size} bytes; {limit}: stream it, or ask for less")

    async def _until_due(self) -> None:
        await (self._ended if self._unary else self._something).wait()
        if self._interval and not self._unary:
            loop = asyncio.get_running_loop()
            early = self._due - loop.time()
            if early > 0 and not self._ended.is_set():
                ended = asyncio.ensure_future(self._ended.wait())
                await asyncio.wait({ended}, timeout=early)
                ended.cancel()
            self._due = loop.time() + self._interval
        if not self._ended.is_set():
            self._something.clear()

    def _take(self) -> pb.OutputDelta | None:
        delta, self._delta = self._delta, None
        self._room.set()
        return delta


def _least_bytes(
    token_ids: Sequence[int], text: str, logprobs: Sequence[pb.TokenLogprob], report: pb.StepReport | None
) -> int:
    """What a step adds to a message, without what tells how long its parts are: sizing all of it each time would be
    work in the square of its length.
    """
    ids = sum((token.bit_length() + 6) // 7 or 1 for token in token_ids)
    parts: int = sum(logprob.ByteSize() for logprob in logprobs) + (0 if report is None else report.ByteSize())
    return ids + len(text.encode()) + parts


def usage_to_proto(usage: Usage) -> pb.Usage:
    """As clients see it."""
    message = pb.Usage(
        input_token_count=usage.num_input,
        cached_input_token_count=usage.num_cached_input,
        output_token_count=usage.num_output,
        drafted_token_count=usage.num_drafted,
        accepted_token_count=usage.num_accepted,
        step_count=usage.num_steps,
    )
    for pool, seconds in sorted(usage.device_seconds.items()):
        message.pools.add(pool=pool).device_time.FromNanoseconds(round(seconds * 1e9))
    return message

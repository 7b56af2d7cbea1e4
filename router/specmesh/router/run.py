"""Runs of plain tokens: how many steps need no word of the router between them, and their answers as they come."""

import asyncio
from collections import deque
from dataclasses import replace

from specmesh.router.policies.interface import Choice, StepView
from specmesh.router.session import Session
from specmesh.runtime.types import Block, EntryFailure, StepResult


def as_run(block: Block, length: int) -> Block:
    """The block, or the run that it begins."""
    return replace(block, run_count=length) if length > 1 else block


def run_length(session: Session, choice: Choice, view: StepView, *, most: int) -> int:
    """Plain steps to ask for at once; 1 where the next step may be another one than this (pure).

    Where no arm may serve there is nothing to choose; else the policy says for how long its choice stands. A stop
    string may end the text at any token, and what the target computed after it would be lost.
    """
    if choice.arm is not None or session.plan.stop_strings:
        return 1
    wanted = choice.plain_steps if view.arms else most
    return max(min(wanted, most, session.num_left), 1)


class Answers:
    """The answers to one entry: to a block one, to a run one for each token, in order. Belongs to one event loop."""

    __slots__ = ("_came", "_lost", "_position", "_received", "_unread")

    def __init__(self, position: int, count: int) -> None:
        """`count` answers, the first one to a step at `position`."""
        self._position = position
        self._unread = count
        self._received: deque[StepResult | EntryFailure] = deque()
        self._lost: Exception | None = None
        self._came: asyncio.Future[None] | None = None

    @property
    def unread(self) -> int:
        """Answers that nobody has taken yet."""
        return self._unread

    def receive(self, answer: StepResult | EntryFailure) -> None:
        """An answer has arrived; one to another step is nobody's."""
        if answer.position != self._position or len(self._received) >= self._unread:
            return
        self._received.append(answer)
        if isinstance(answer, EntryFailure) or answer.finish_reason is not None:
            self._unread = len(self._received)
        else:
            self._position += len(answer.token_ids)
        self._wake()

    def lose(self, error: Exception) -> None:
        """No more will arrive. What has arrived can still be taken."""
        self._lost = error
        self._wake()

    async def take(self) -> StepResult | EntryFailure:
        """The next answer. Raises what `lose` was given."""
        while not self._received:
            if self._lost is not None:
                raise self._lost
            self._came = asyncio.get_running_loop().create_future()
            await self._came
        self._unread -= 1
        return self._received.popleft()

    def _wake(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

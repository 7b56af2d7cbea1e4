"""What drafts hold of one session, and what they have said of its text."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specmesh.router.block import ArrivingBlock
from specmesh.router.draft_replica import INLINE_TOKENS, DraftReplica
from specmesh.router.policies.interface import Arm, ArmScores
from specmesh.router.session import Session

NEAR_SECONDS = 0.002


@dataclass(slots=True)
class SessionDrafts:
    """One session's share of all drafts."""

    held: dict[DraftReplica, tuple[int, int]] = field(default_factory=dict)
    """Connection (epoch) and position up to which each replica was sent the context."""
    last: dict[Arm, DraftReplica] = field(default_factory=dict)
    left: set[Arm] = field(default_factory=set)
    """Arms whose context is full."""
    _scores: dict[Arm, ArmScores] = field(default_factory=dict)
    _asking: dict[DraftReplica, asyncio.Task[None]] = field(default_factory=dict)
    """Replicas asked for scores only, whose answer is awaited."""

    def pick(self, arm: Arm, replicas: Sequence[DraftReplica]) -> DraftReplica | None:
        """The replica that has the session's cache, else the one with the fewest sessions for its distance."""
        last = self.last.get(arm)
        if last is not None and last.health.ready:
            return last
        ready = [replica for replica in replicas if replica.health.ready]
        if not ready:
            return None
        if last is not None:
            last.num_sessions -= 1
        replica = self.last[arm] = min(ready, key=_cost)
        replica.num_sessions += 1
        return replica

    def hand_over(self, replica: DraftReplica, position: int) -> tuple[int, bool]:
        """From where on a replica needs the context up to `position`, which it holds from now on; is it warm?"""
        epoch, start = self.held.get(replica, (0, 0))
        warm = epoch == replica.epoch
        self.held[replica] = replica.epoch, position
        return start if warm else 0 if position <= INLINE_TOKENS else position, warm

    def ask_scores(self, session: Session, arm: Arm, replica: DraftReplica, seconds: float) -> None:
        """Ask beside the step; a replica that does not know the session yet only takes the context in."""
        self.stop_asking(replica)
        self._asking[replica] = asyncio.create_task(self._ask_scores(session, arm, replica, seconds))

    async def _ask_scores(self, session: Session, arm: Arm, replica: DraftReplica, seconds: float) -> None:
        start, warm = self.hand_over(replica, session.position)
        _, answer = await replica.draft(session, 0, delta_start=start, seconds=seconds, want_scores=warm)
        self.note_scores(arm, start, answer)
        self._asking.pop(replica, None)

    def stop_asking(self, replica: DraftReplica) -> None:
        """The replica is needed for a block of this session."""
        asking = self._asking.pop(replica, None)
        if asking is not None:
            asking.cancel()

    def note_scores(self, arm: Arm, start: int, answer: ArrivingBlock) -> None:
        """Keep what an answer says of the tokens from `start` on, until the step's end."""
        if len(answer.delta_logprobs) == answer.position - start > 0:
            self._scores[arm] = ArmScores(start, answer.delta_logprobs, answer.delta_guessed)

    def take_scores(self) -> Mapping[Arm, ArmScores]:
        """What has been said since this was last called."""
        scores, self._scores = self._scores, {}
        return scores

    def close(self, session_id: int) -> None:
        """Every replica that was sent anything of the session forgets it."""
        for replica in list(self._asking):
            self.stop_asking(replica)
        for replica in self.held:
            replica.close(session_id)
        for replica in self.last.values():
            replica.num_sessions -= 1


def _cost(replica: DraftReplica) -> float:
    """Replicas of one machine room count as equally near."""
    return (replica.num_sessions + 1) * max(replica.round_trip, NEAR_SECONDS)

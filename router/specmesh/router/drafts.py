"""The draft pools as the step sees them: which arms there are, and a block by its deadline."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc.aio

from specmesh.router.arms import ArmFacts, ArmStats
from specmesh.router.ask import Ending
from specmesh.router.block import NO_WORK, ArrivingBlock, DraftWork
from specmesh.router.config import DraftsConfig, PoolConfig, RouterConfig
from specmesh.router.discovery import Fleet, Resolve, resolve_name
from specmesh.router.draft_replica import DraftReplica
from specmesh.router.health import ReplicaHealth
from specmesh.router.policies.interface import Arm, ArmScores, ArmView, Choice
from specmesh.router.registration import Target
from specmesh.router.session import Session
from specmesh.router.session_drafts import SessionDrafts
from specmesh.runtime.types import Block, BlockRefusal, DraftEndReason, FallbackReason, StepResult

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ArmRecord:
    """An arm, its replicas and how it has done."""

    facts: ArmFacts
    max_block_length: int
    max_context_tokens: int
    replicas: list[DraftReplica] = field(default_factory=list)
    stats: ArmStats = field(default_factory=ArmStats)
    quarantined: str = ""
    """Why; it needs an operator, so it outlives every connection."""

    @property
    def ready(self) -> bool:
        """Whether any replica is."""
        return any(replica.health.ready for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a step has to verify, where it came from and what it cost."""

    block: Block
    fallback: FallbackReason | None = None
    arm: Arm | None = None
    replica: DraftReplica | None = None
    work: DraftWork = NO_WORK
    wait_ns: int = 0


class Drafts:
    """All pools. `retarget` when the target is known; `run` keeps replicas connected until cancelled."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        connect: Callable[..., grpc.aio.Channel],
        clock: Callable[[], float] = time.monotonic,
        resolve: Resolve = resolve_name,
    ) -> None:
        self.arms: dict[Arm, ArmRecord] = {}
        self._config = config
        self._settings: DraftsConfig = config.drafts
        self._trusted = {pool.name: pool.trust == "full" for pool in config.pools}
        self._connect = connect
        self._clock = clock
        self._resolve = resolve
        self._sessions: dict[int, SessionDrafts] = {}
        self._fleets: dict[str, Fleet[DraftReplica]] = {}
        self._target: asyncio.Future[Target] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Keep the replicas of every pool connected for the present target, until cancelled."""
        while True:
            target = await self._target
            tasks = [asyncio.create_task(self._fleet(pool, target).run()) for pool in self._config.pools]
            self._target = asyncio.get_running_loop().create_future()
            try:
                waiting: list[asyncio.Future[Any]] = [self._target, *tasks]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def retarget(self, target: Target) -> None:
        """Another model is served: every draft is looked at anew."""
        if self._target.done():
            self._target = asyncio.get_running_loop().create_future()
        self._target.set_result(target)

    def _fleet(self, pool: PoolConfig, target: Target) -> Fleet[DraftReplica]:
        settings = self._settings

        def make(address: str) -> DraftReplica:
            return DraftReplica(
                pool.name,
                address,
                connect=partial(self._connect, server_name=pool.server_name) if pool.server_name else self._connect,
                target=target,
                health=ReplicaHealth(settings.cooldown),
                probe_seconds=settings.block_deadline_ms / 1000,
                joined=self._join,
            )

        fleet = Fleet(
            pool.addresses,
            make,
            interval=self._config.discovery_seconds,
            resolve=self._resolve,
            removed=self._leave,
        )
        self._fleets[pool.name] = fleet
        return fleet

    def replicas(self) -> list[DraftReplica]:
        """Every replica, in whatever state."""
        return [replica for fleet in self._fleets.values() for replica in fleet.members.values()]

    def _join(self, replica: DraftReplica) -> None:
        info = replica.info
        assert info is not None
        arm = Arm(replica.pool, info.model_digest)
        record = self.arms.get(arm)
        if record is None:
            facts = ArmFacts(arm, self._trusted[replica.pool], not info.one_hot)
            record = self.arms[arm] = ArmRecord(facts, info.max_block_length, info.max_context_tokens)
            self._check_fixed(arm)
        if replica not in record.replicas:
            self._leave(replica)
            record.replicas.append(replica)
        if record.quarantined:
            replica.quarantine(record.quarantined)

    def _check_fixed(self, arm: Arm) -> None:
        """Drafts cost speed only, so a fixed arm that is not there refuses no request; but it is said."""
        policy = self._config.policy
        fixed = policy.settings.fixed_arm if policy.name == "fixed" else ""
        if fixed.startswith(f"{arm.pool}@") and fixed != arm.name:
            reason = f"policy.settings.fixed_arm: no such arm: {fixed}; there is {arm.name}"
            _log.warning("the fixed arm is not there", extra={"pool": arm.pool, "reason": reason})

    def _leave(self, replica: DraftReplica) -> None:
        for record in list(self.arms.values()):
            if replica in record.replicas:
                record.replicas.remove(replica)
                if not record.replicas and not record.quarantined:
                    del self.arms[record.facts.arm]

    def views(self, session: Session) -> tuple[ArmView, ...]:
        """Arms that are ready and may draft for the session now."""
        if session.held_out:
            return ()
        scope, position = session.plan.scope, session.position
        known = self._sessions.get(session.session_id)
        left = known.left if known else ()
        return tuple(
            ArmView(arm, record.max_block_length, record.stats.draft_seconds)
            for arm, record in self.arms.items()
            if record.ready and scope.permits(record.facts) and position < record.max_context_tokens and arm not in left
        )

    async def block(
        self, session: Session, choice: Choice, views: tuple[ArmView, ...], *, want_scores: bool = False
    ) -> Drafted:
        """The block of the chosen arm by its deadline: all of it, or what has arrived."""
        record = self.arms.get(choice.arm) if choice.arm and choice.block_length else None
        if record is None:
            return Drafted(Block(session.position), self._why_plain(session, views))
        known = self._sessions.setdefault(session.session_id, SessionDrafts())
        replica = known.pick(record.facts.arm, record.replicas)
        if replica is None:
            return Drafted(Block(session.position), FallbackReason.NO_ARM)
        length = min(choice.block_length, session.max_block_length, record.max_block_length)
        started = time.perf_counter_ns()
        known.stop_asking(replica)
        start, warm = known.hand_over(replica, session.position)
        seconds = self._deadline(record.stats, length, warm=warm)
        ending, arriving = await replica.draft(
            session, length, delta_start=start, seconds=seconds, want_scores=want_scores and warm
        )
        known.note_scores(record.facts.arm, start, arriving)
        wait_ns = time.perf_counter_ns() - started
        self._note_ending(record, known, replica, ending, arriving, wait_ns / 1e9, warm=warm)
        return self._drafted(session, record.facts.arm, replica, ending, arriving, wait_ns)

    def ask_scores(self, session: Session, arms: Sequence[Arm]) -> None:
        """Ask these arms how they would have done on what was emitted. Nothing waits for their answers."""
        known = self._sessions.setdefault(session.session_id, SessionDrafts()) if arms else None
        for arm in arms:
            record = self.arms.get(arm)
            replica = known.pick(arm, record.replicas) if known and record else None
            if known and replica:
                known.ask_scores(session, arm, replica, self._settings.block_deadline_ms / 1000)

    def take_scores(self, session: Session) -> Mapping[Arm, ArmScores]:
        """What has been answered since this was last called."""
        known = self._sessions.get(session.session_id)
        return known.take_scores() if known else {}

    def _drafted(
        self, session: Session, arm: Arm, replica: DraftReplica, ending: Ending, arriving: ArrivingBlock, wait_ns: int
    ) -> Drafted:
        block = arriving.cut()
        if block.rows and session.plan.scope.needs_trust and not self._trusted[replica.pool]:
            # It said that it sends no rows. Plain decoding of the whole step is exact whatever the draft knows.
            replica.fail("rows from an untrusted draft that should send none")
            return Drafted(Block(session.position), FallbackReason.INVALID_BLOCK, arm, None, arriving.work, wait_ns)
        nothing = not block.token_ids and ending is not Ending.COMPLETE
        fallback = FallbackReason.TIMEOUT if nothing else None
        return Drafted(block, fallback, arm, replica, arriving.work, wait_ns)

    def _why_plain(self, session: Session, views: tuple[ArmView, ...]) -> FallbackReason:
        scope = session.plan.scope
        named = [record.facts for record in self.arms.values() if scope.names(record.facts)]
        if not scope.pools or (named and all(map(scope.distrusts, named))):
            return FallbackReason.FORBIDDEN
        return FallbackReason.POLICY if views or session.max_block_length == 0 else FallbackReason.NO_ARM

    def _deadline(self, stats: ArmStats, length: int, *, warm: bool) -> float:
        settings = self._settings
        expected = stats.expected_seconds(length)
        if expected is None or not warm:
            return settings.block_deadline_ms / 1000
        adaptive = max(expected * settings.deadline_multiple, settings.min_deadline_ms / 1000)
        return min(adaptive, settings.block_deadline_ms / 1000)

    def _note_ending(
        self,
        record: ArmRecord,
        known: SessionDrafts,
        replica: DraftReplica,
        ending: Ending,
        arriving: ArrivingBlock,
        seconds: float,
        *,
        warm: bool,
    ) -> None:
        length = arriving.length
        if arriving.end_reason is DraftEndReason.DEADLINE:  # the draft's own clock was a little faster
            ending = Ending.CUT
        if ending is Ending.COMPLETE:
            replica.on_time()
            if warm:  # taking in a whole context says nothing about the next block
                record.stats.record_time(seconds, length)
        elif ending is Ending.CUT:
            if warm or arriving.token_ids:  # it took at least so long: the next deadline is later
                record.stats.record_time(seconds, length)
            if arriving.token_ids:
                replica.late()
            else:
                replica.silent(time.monotonic() - seconds)
        if ending is Ending.CONTEXT_FULL or arriving.end_reason is DraftEndReason.CONTEXT:
            known.left.add(record.facts.arm)

    def learn(self, session: Session, drafted: Drafted, result: StepResult) -> FallbackReason | None:
        """Take what became of a block; why the step went without a draft in the end, if it did."""
        if drafted.arm is not None:
            session.usage.add_device_time(drafted.arm.pool, drafted.work.compute_ns, drafted.work.batch_size)
        record = self.arms.get(drafted.arm) if drafted.arm else None
        if record is None or drafted.replica is None:
            return drafted.fallback
        if result.block_refusal is BlockRefusal.RESAMPLE_MISMATCH:
            self._quarantine(record)
        elif result.block_refusal is not None:
            drafted.replica.fail(f"block refused: {result.block_refusal.value}")
        else:
            record.stats.record_step(result.num_accepted, result.num_drafted, self._clock())
            return drafted.fallback
        return FallbackReason.INVALID_BLOCK

    def _quarantine(self, record: ArmRecord) -> None:
        record.quarantined = "sent tokens that it did not sample from the rows it declared"
        _log.error("arm quarantined", extra={"arm": record.facts.name})
        for replica in record.replicas:
            replica.quarantine(record.quarantined)

    def close(self, session: Session) -> None:
        """Every replica that was sent anything of the session forgets it."""
        known = self._sessions.pop(session.session_id, None)
        if known is not None:
            known.close(session.session_id)

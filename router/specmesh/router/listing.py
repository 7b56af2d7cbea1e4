"""The arms as operators see them (`ListDrafts`)."""

from google.protobuf.duration_pb2 import Duration

from specmesh.router.arms import ArmStats
from specmesh.router.draft_replica import DraftReplica
from specmesh.router.drafts import ArmRecord, Drafts
from specmesh.router.policies.interface import Arm
from specmesh.runtime.types import ArmState
from specmesh.v1 import router_service_pb2 as pb

_PREFERENCE = (
    ArmState.READY, ArmState.PROBING, ArmState.COOLING, ArmState.DRAINING, ArmState.INCOMPATIBLE, ArmState.QUARANTINED,
)  # fmt: skip
_NO_STATS = ArmStats()


def list_arms(drafts: Drafts, now: float) -> list[pb.DraftArm]:
    """Every arm; replicas that did not fit or never answered are arms of their own, with the reason."""
    joined = {id(replica) for record in drafts.arms.values() for replica in record.replicas}
    loose: dict[Arm, list[DraftReplica]] = {}
    for replica in drafts.replicas():
        if id(replica) not in joined:
            arm = Arm(replica.pool, replica.info.model_digest if replica.info else "")
            loose.setdefault(arm, []).append(replica)
    steps = sum(record.stats.steps_lately(now) for record in drafts.arms.values())
    arms = [_joined(record, steps, now) for record in drafts.arms.values()]
    arms += [_arm(arm, replicas, _NO_STATS) for arm, replicas in loose.items()]
    return sorted(arms, key=lambda arm: arm.name)


def _joined(record: ArmRecord, steps: int, now: float) -> pb.DraftArm:
    message = _arm(record.facts.arm, record.replicas, record.stats)
    if record.quarantined:
        message.state, message.reason = pb.ARM_STATE_QUARANTINED, record.quarantined
    message.step_share = record.stats.steps_lately(now) / steps if steps else 0.0
    return message


def _arm(arm: Arm, replicas: list[DraftReplica], stats: ArmStats) -> pb.DraftArm:
    latency = Duration()
    latency.FromNanoseconds(round(stats.median_seconds * 1e9))
    message = pb.DraftArm(
        name=arm.name if arm.digest else arm.pool,
        fingerprint=arm.digest,
        ready_replica_count=sum(replica.health.ready for replica in replicas),
        acceptance=stats.acceptance,
        block_latency=latency,
    )
    if replicas:
        best = min(replicas, key=lambda replica: _PREFERENCE.index(replica.health.state)).health
        message.state = pb.ArmState.Value(f"ARM_STATE_{best.state.name}")
        message.reason = best.reason
    return message

"""A step as a client with the debug role sees it."""

from google.protobuf.duration_pb2 import Duration

from specmesh.router.committed import CommittedStep
from specmesh.v1 import router_service_pb2 as pb


def report_step(step: CommittedStep) -> pb.StepReport:
    """`arm` is the one that was asked, also when nothing of it could be used."""
    drafted, result, fallback, spent = step.drafted, step.result, step.fallback, step.spent
    return pb.StepReport(
        arm=drafted.arm.name if drafted.arm else "",
        drafted_count=result.num_drafted,
        accepted_count=result.num_accepted,
        emitted_count=len(result.token_ids),
        predicted=drafted.work.predicted,
        fallback_reason=pb.FallbackReason.Value(f"FALLBACK_REASON_{fallback.name}") if fallback else None,
        timing=pb.StepTiming(
            total=_duration(spent.total),
            draft=_duration(spent.draft),
            network=_duration(spent.network),
            queue=_duration(spent.queue),
            forward=_duration(spent.forward),
            verify=_duration(spent.verify),
            router=_duration(spent.router),
        ),
        reward=result.reward,
    )


def _duration(nanoseconds: int) -> Duration:
    return Duration(seconds=nanoseconds // 1_000_000_000, nanos=nanoseconds % 1_000_000_000)

"""A session from its first step to its last, and the freeing of all that it held anywhere."""

from specmesh.router.output import Output
from specmesh.router.session import Session
from specmesh.router.step import Mesh, step
from specmesh.runtime.types import FinishReason


async def generate(session: Session, mesh: Mesh, output: Output, until: float) -> None:
    """Run `session` until its text ends. `until` is the client's deadline on the monotonic clock.

    However it ends, verifier, drafts and policy have let go of it afterwards: closing only queues entries.
    """
    reason = FinishReason.STOP if output.stop_matched else session.ended_by_continuation()
    if reason is not None:
        output.finish(reason)
        return
    try:
        await mesh.verifiers.open(session, until)
        while session.finish_reason is None:
            await output.room()
            with mesh.watch.step(session) as watched:
                await step(session, mesh, output, watched)
        output.finish(session.finish_reason)
    finally:
        mesh.verifiers.close(session)
        mesh.drafts.close(session)
        mesh.policy.forget(session.session_id)

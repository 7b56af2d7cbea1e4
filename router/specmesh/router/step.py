"""THE step: choose an arm and a length, get its block by the deadline, verify, commit, stream, observe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specmesh.router.committed import CommittedStep
from specmesh.router.drafts import Drafts
from specmesh.router.output import Output
from specmesh.router.policies import PLAIN, Arm, ArmScores, ArmView, Policy, StepObservation, StepView
from specmesh.router.reports import report_step
from specmesh.router.run import as_run, run_length
from specmesh.router.session import Session
from specmesh.router.timing import Stopwatch
from specmesh.router.verifiers import Verifiers
from specmesh.router.watching import NO_WATCH, Watch, WatchedStep


@dataclass(frozen=True, slots=True)
class Mesh:
    """What steps work with."""

    policy: Policy
    drafts: Drafts
    verifiers: Verifiers
    num_sessions: Callable[[], int]
    max_run_tokens: int = 1
    watch: Watch = NO_WATCH


async def step(session: Session, mesh: Mesh, output: Output, watched: WatchedStep) -> None:
    """One step of one session. Raises a `MeshError` when the session cannot go on."""
    watch = Stopwatch()
    arms = mesh.drafts.views(session)
    view = view_step(session, arms, mesh.num_sessions())
    in_run = mesh.verifiers.running(session)
    choice = PLAIN if in_run else mesh.policy.choose(view)
    others = mesh.policy.also_score(view, choice)
    with watched.draft(choice):
        drafted = await mesh.drafts.block(session, choice, arms, want_scores=mesh.policy.wants_scores)
    mesh.drafts.ask_scores(session, others)
    block = as_run(drafted.block, run_length(session, choice, view, most=mesh.max_run_tokens))
    with watch.round_trip, watched.verify(asked=not in_run):
        result = await mesh.verifiers.verify(session, block)
    result = output.cut_at_stop(result)
    session.commit(result)
    fallback = mesh.drafts.learn(session, drafted, result)
    spent = watch.split(drafted.wait_ns, drafted.work, result.timing)
    committed = CommittedStep(session, view, choice, drafted, result, fallback, spent)
    watched.done(committed)
    output.add(result, report_step(committed) if session.plan.step_reports else None)
    mesh.policy.observe(observe_step(committed, mesh.drafts.take_scores(session)))


def view_step(session: Session, arms: tuple[ArmView, ...], num_sessions: int) -> StepView:
    """What the policy may know before it chooses."""
    return StepView(
        session_id=session.session_id,
        position=session.position,
        max_block_length=session.max_block_length,
        arms=arms,
        greedy=session.plan.sampling.greedy,
        rule=session.plan.rule,
        workload=session.plan.workload,
        num_sessions=num_sessions,
    )


def observe_step(step: CommittedStep, scores: Mapping[Arm, ArmScores]) -> StepObservation:
    """What the policy learns from a committed step."""
    session, result = step.session, step.result
    return StepObservation(
        session_id=session.session_id,
        choice=step.choice,
        num_drafted=result.num_drafted,
        num_accepted=result.num_accepted,
        num_emitted=len(result.token_ids),
        seconds=step.spent.seconds(),
        ended=session.finish_reason is not None,
        position=result.position,
        target_logprobs=tuple(logprob.logprob for logprob in result.logprobs),
        scores=scores,
    )

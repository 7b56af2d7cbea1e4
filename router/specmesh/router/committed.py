"""A step that is over, as whoever learns from it, counts it or reports it sees it."""

from dataclasses import dataclass

from specmesh.router.drafts import Drafted
from specmesh.router.policies.interface import Choice, StepView
from specmesh.router.session import Session
from specmesh.router.timing import StepNanoseconds
from specmesh.runtime.types import FallbackReason, StepResult


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """What a step might have chosen and chose, what came of it, and where its time went."""

    session: Session
    """As it is after the step."""
    view: StepView
    """What the policy knew before it."""
    choice: Choice
    drafted: Drafted
    result: StepResult
    fallback: FallbackReason | None
    """Why it went without a draft in the end, if it did."""
    spent: StepNanoseconds

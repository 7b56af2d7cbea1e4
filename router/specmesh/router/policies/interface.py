"""What a policy sees, answers and learns from.

A policy sees the past only: what a draft would propose now is not in a `StepView`, so its choice cannot bias the text
(specification 1.5). Policies do no IO, read no clock and draw from a generator seeded by their maker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from specmesh.runtime.types import Rule


class Arm(NamedTuple):  # Not a dataclass: it is a key, and a step hashes it ten times.
    """A pool at one model digest."""

    pool: str
    digest: str

    @property
    def name(self) -> str:
        """As people and requests write it: `pool@digest`, the digest shortened to 8 characters."""
        return f"{self.pool}@{self.digest[:8]}"


@dataclass(frozen=True, slots=True)
class ArmView:
    """An arm that may serve this step; `draft_seconds` is its recent time to a block, None when unknown."""

    arm: Arm
    max_block_length: int
    draft_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StepView:
    """A step about to be taken. `arms` are those that are ready and permitted; it may be empty."""

    session_id: int
    position: int
    max_block_length: int
    arms: tuple[ArmView, ...]
    greedy: bool = False
    rule: Rule = Rule.BLOCK
    workload: str = ""
    num_sessions: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """An arm and how many tokens it shall propose; (None, 0) is plain decoding.

    `plain_steps`: of plain decoding, for how many steps the choice stands, as far as the policy cares; it may be asked
    again before.
    """

    arm: Arm | None
    block_length: int
    plain_steps: int = field(default=1, compare=False)


PLAIN = Choice(None, 0)


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds a step spent waiting, by part; the parts add up to `total`."""

    total: float
    draft: float = 0.0
    network: float = 0.0
    queue: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    router: float = 0.0


@dataclass(frozen=True, slots=True)
class ArmScores:
    """How an arm would have done on tokens of the context from position `start` on, whoever drafted them.

    `logprobs`: ln D of each in the row as it would have been sent, -inf outside. `guessed`: under COUPLED, whether the
    arm would have guessed it.
    """

    start: int
    logprobs: tuple[float, ...]
    guessed: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class StepObservation:
    """A step that is over.

    `num_drafted` counts the drafts that were verified, so one cut short by its deadline has fewer than chosen. `ended`
    says that EOS, a stop, a limit, a deadline or a cancel ended the session in this step: how many drafts would have
    been kept after that is not known. `scores` holds what arms that were asked have answered since the last step, of
    tokens up to `position`, where this step began. `target_logprobs` are ln T of the emitted tokens, when a policy that
    learns from scores needs them: not at temperature 0 and not under COUPLED.
    """

    session_id: int
    choice: Choice
    num_drafted: int
    num_accepted: int
    num_emitted: int
    seconds: StepSeconds
    ended: bool = False
    position: int = 0
    target_logprobs: tuple[float, ...] = ()
    scores: Mapping[Arm, ArmScores] = field(default_factory=dict)


class Policy(Protocol):
    """Chooses the arm and block length of each step, and learns from what came of it."""

    wants_scores: bool
    """Whether it learns from scores; one that does not is never given any."""

    def choose(self, view: StepView) -> Choice:
        """Pick among the arms of `view` and plain decoding; never longer than the view and the arm allow."""

    def also_score(self, view: StepView, choice: Choice) -> tuple[Arm, ...]:
        """Arms of `view`, besides the chosen one, to be asked during this step how they would have done."""

    def observe(self, observation: StepObservation) -> None:
        """Learn from a finished step."""

    def forget(self, session_id: int) -> None:
        """Drop what is held for a session that is over."""

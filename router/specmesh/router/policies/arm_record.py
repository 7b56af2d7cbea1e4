"""What the planner knows of one arm over all sessions."""

from specmesh.router.policies.replay import Evidence

ARM_FADE = 0.995
"""Per replayed token."""
STEP_FADE = 0.98
"""Per step of the policy, whoever drafted: what an idle arm did long ago counts ever less, so it is tried again."""
USUAL_ACCEPTANCE = 0.5
OUTCOME_WEIGHT = 2.0
SCORE_WEIGHT = 8.0
DELIVERY_WEIGHT = 20.0
TOLERATED_SHORTFALL = 0.15


class ArmRecord:
    """Running estimates; steps are numbered by the policy."""

    __slots__ = (
        "_accepted",
        "_delivered",
        "_judged",
        "_promised",
        "_seen_at",
        "evidence",
        "played_at",
        "tries",
    )

    def __init__(self, longest: int) -> None:
        self.evidence = Evidence(longest, ARM_FADE)
        self.played_at = -1
        """The last step it was chosen for."""
        self.tries = 0
        self._accepted = 0.0
        self._judged = 0.0
        self._delivered = DELIVERY_WEIGHT
        self._promised = DELIVERY_WEIGHT
        self._seen_at = 0

    @property
    def state(self) -> tuple[float, int]:
        """Changes with everything that is learned of the arm."""
        return self.evidence.tokens, self._seen_at

    def record(self, step: int, *, accepted: int, drafted: int, emitted: int, promised: float) -> None:
        """A step it drafted for and that did not end its session; `promised`: the tokens that were expected of it."""
        fade = STEP_FADE ** max(step - self._seen_at, 0)
        self._seen_at = step
        # A draft that brought nothing in time earned nothing.
        self._accepted = self._accepted * fade + accepted
        self._judged = self._judged * fade + (accepted + (accepted < drafted or drafted == 0))
        self._delivered = (self._delivered - DELIVERY_WEIGHT) * fade + DELIVERY_WEIGHT + emitted
        self._promised = (self._promised - DELIVERY_WEIGHT) * fade + DELIVERY_WEIGHT + promised

    def tokens_per_step(self, step: int, own: Evidence | None, shrinkage: float) -> list[float]:
        """By block length: what its scores say, filled up with what its outcomes say while scores are few.

        `own`: those of one session, which count as they are, with `shrinkage` tokens' worth of all the others.
        """
        fade = STEP_FADE ** max(step - self._seen_at, 0)
        tosses = self._judged * fade + OUTCOME_WEIGHT
        acceptance = (self._accepted * fade + OUTCOME_WEIGHT * USUAL_ACCEPTANCE) / tosses
        scored = self.evidence.tokens + SCORE_WEIGHT
        by_outcomes, kept, expected = 1.0, 1.0, []
        for steps in self.evidence.steps:
            kept *= acceptance
            by_outcomes += kept  # the geometric formula: all that outcomes alone allow
            expected.append(scored / (steps + SCORE_WEIGHT / by_outcomes))
        if own is None:
            return expected
        tokens = own.tokens + shrinkage
        return [tokens / (steps + shrinkage / usual) for steps, usual in zip(own.steps, expected, strict=True)]

    def delivery(self) -> float:
        """Tokens that came over those that scores promised, at most 1: less for blocks that come late, cut or refused,
        and for an arm whose scores flatter it. Chance alone makes a shortfall, so a small one is let pass.
        """
        return min(self._delivered / self._promised / (1 - TOLERATED_SHORTFALL), 1.0)

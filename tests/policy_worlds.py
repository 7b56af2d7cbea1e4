"""Simulated meshes for policies: arms that guess right by chance, steps that take what a formula says."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specmesh.router.policies import Arm, ArmScores, ArmView, Choice, Policy, StepObservation, StepSeconds, StepView
from specmesh.runtime.types import Rule

A, B, C = (Arm(pool, pool * 64) for pool in "abc")
Chance = Callable[[int], float]
"""Of a right guess, by the number of steps taken."""
Times = Callable[[Choice, int], tuple[float, float]]
"""(seconds of the draft, of the rest) of a step, by choice and number of sessions."""


@dataclass
class World:
    """One session after another under COUPLED; scores come in the step in which they were asked for."""

    chances: Mapping[Arm, Chance]
    times: Times
    seed: int = 0
    scoring: frozenset[Arm] | None = None
    """Arms that score; None: all."""
    session_tokens: int = 1_000_000
    num_sessions: Callable[[int], int] = lambda step: 1
    flattery: frozenset[Arm] = frozenset()
    """Arms that say they would have guessed everything."""
    score_seconds: Mapping[Arm, float] = field(default_factory=dict)
    """What asking an arm for scores takes from the target's forward pass beside it."""
    session: int = 0
    tokens: int = 0
    seconds: float = 0.0
    choices: list[Choice] = field(default_factory=list)
    _bits: dict[Arm, list[bool]] = field(default_factory=dict)
    _asked: dict[Arm, int] = field(default_factory=dict)
    _position: int = 10
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def play(self, policy: Policy, steps: int) -> float:
        """Take steps; their goodput in tokens per second."""
        tokens, seconds = self.tokens, self.seconds
        for _ in range(steps):
            self._step(policy)
        return (self.tokens - tokens) / (self.seconds - seconds)

    def _step(self, policy: Policy) -> None:
        step = len(self.choices)
        if self._position - 10 >= self.session_tokens:
            policy.forget(self.session)
            self.session, self._position, self._bits, self._asked = self.session + 1, 10, {}, {}
        number = self.num_sessions(step)
        arms = tuple(ArmView(arm, 8) for arm in self.chances)
        view = StepView(self.session, self._position, 8, arms, rule=Rule.COUPLED, num_sessions=number)
        choice = policy.choose(view)
        others = policy.also_score(view, choice)
        asked = [*others, *([choice.arm] if choice.arm and policy.wants_scores else [])]
        scores = {arm: self._scores(arm) for arm in asked if self.scoring is None or arm in self.scoring}
        accepted = self._accepted(choice, step)
        draft, rest = self.times(choice, number)
        rest += sum(self.score_seconds.get(arm, 0.0) for arm in others)
        self.choices.append(choice)
        self.tokens += accepted + 1
        self.seconds += draft + rest
        policy.observe(
            StepObservation(
                session_id=self.session,
                choice=choice,
                num_drafted=choice.block_length,
                num_accepted=accepted,
                num_emitted=accepted + 1,
                seconds=StepSeconds(draft + rest, draft=draft, forward=rest),
                position=self._position,
                scores={arm: each for arm, each in scores.items() if each.guessed},
            )
        )
        self._position += accepted + 1

    def _accepted(self, choice: Choice, step: int) -> int:
        """Every arm's guess at every position is drawn once, whoever drafts."""
        for arm, chance in self.chances.items():
            bits = self._bits.setdefault(arm, [])
            while len(bits) <= self._position - 10 + 8:
                bits.append(self._random.random() < chance(step))
        accepted = 0
        if choice.arm is not None:
            bits = self._bits[choice.arm]
            while accepted < choice.block_length and bits[self._position - 10 + accepted]:
                accepted += 1
        return accepted

    def _scores(self, arm: Arm) -> ArmScores:
        """Of the tokens since it was last asked."""
        start, end = self._asked.get(arm, self._position), self._position
        self._asked[arm] = end
        bits = self._bits.get(arm, [])[start - 10 : end - 10]
        guessed = tuple(bit or arm in self.flattery for bit in bits)
        return ArmScores(start, tuple(0.0 if bit else float("-inf") for bit in guessed), guessed)

"""One arm and one length, whatever happens."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from specmesh.router.policies.interface import PLAIN, Arm, ArmView, Choice, StepObservation, StepView
from specmesh.router.policies.settings import PolicySettings

FOREVER = 1 << 30


class FixedPolicy:
    """Always the arm and length that its settings name; plain decoding while that arm is not offered."""

    wants_scores = False

    def __init__(self, *, seed: int, settings: PolicySettings) -> None:
        del seed  # nothing is drawn
        self._arm = settings.fixed_arm
        self._length = settings.fixed_length
        self._plain = PLAIN if self._length else Choice(None, 0, plain_steps=FOREVER)

    def choose(self, view: StepView) -> Choice:
        """The settings' arm, at their length or what the step allows of it."""
        for arm_view in view.arms:
            if self._arm in ("", arm_view.arm.pool, arm_view.arm.name):
                length = min(self._length, arm_view.max_block_length, view.max_block_length)
                return Choice(arm_view.arm, length) if length > 0 else self._plain
        return PLAIN

    def also_score(self, view: StepView, choice: Choice) -> tuple[Arm, ...]:
        """None: nothing is learned."""
        del view, choice
        return ()

    def in_demand(self, view: StepView, absent: Sequence[ArmView], unloaded: Mapping[Arm, float]) -> Collection[Arm]:
        """What it would choose if all were there; times do not matter."""
        del unloaded
        choice = self.choose(replace(view, arms=(*view.arms, *absent)) if absent else view)
        return [choice.arm] if choice.arm is not None else []

    def observe(self, observation: StepObservation) -> None:
        """Nothing is learned."""

    def forget(self, session_id: int) -> None:
        """Nothing is held by session."""

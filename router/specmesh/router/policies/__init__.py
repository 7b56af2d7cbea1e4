"""Policies: pure and seeded, they choose the arm and block length of each step and learn from what came of it."""

from collections.abc import Mapping
from typing import Protocol

from specmesh.router.policies.expectation import expected_tokens
from specmesh.router.policies.fixed import FixedPolicy
from specmesh.router.policies.goodput import GoodputPolicy
from specmesh.router.policies.interface import (
    PLAIN,
    Arm,
    ArmScores,
    ArmView,
    Choice,
    Policy,
    StepObservation,
    StepSeconds,
    StepView,
)
from specmesh.router.policies.settings import PolicySettings
from specmesh.router.policies.thompson import ThompsonPolicy
from specmesh.router.policies.ucb1 import Ucb1Policy

__all__ = [
    "PLAIN",
    "POLICIES",
    "Arm",
    "ArmScores",
    "ArmView",
    "Choice",
    "Policy",
    "PolicySettings",
    "StepObservation",
    "StepSeconds",
    "StepView",
    "expected_tokens",
    "make_policy",
]


class PolicyMaker(Protocol):
    """How every policy is made."""

    def __call__(self, *, seed: int, settings: PolicySettings) -> Policy:
        """A policy that has learned nothing yet."""


POLICIES: Mapping[str, PolicyMaker] = {
    "fixed": FixedPolicy,
    "ucb1": Ucb1Policy,
    "thompson": ThompsonPolicy,
    "goodput": GoodputPolicy,
}


def make_policy(name: str, *, seed: int, settings: PolicySettings) -> Policy:
    """One of `POLICIES` by its name, which the configuration has checked."""
    return POLICIES[name](seed=seed, settings=settings)

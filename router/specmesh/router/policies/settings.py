"""Settings of policies, validated when the process starts."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from specmesh.runtime.config import ConfigModel
from specmesh.runtime.given import KeyFault

MAX_CANDIDATE_LENGTH = 64


class PolicySettings(ConfigModel):
    """What an operator may set.

    candidate_lengths: block lengths a bandit chooses among; 0 is plain decoding. An arm or a session that allows less
        than a candidate is offered its own maximum in its place. `goodput` considers every length up to the longest.
    reward: what a bandit learns: `goodput`, emitted tokens per second, or `acceptance`, the paper's accepted / drafted,
        which is not defined at length 0, so that plain decoding is left for steps that have no arm.
    exploration: how much variance a bandit reckons with, as a multiple of what it measures. 1 is the
        published value; 0.7 loses a third less on three coins over 10,000 rounds, below 0.5 some seeds settle wrongly.
    fixed_arm: arm of `fixed`, as `pool` or `pool@digest`; empty takes the first one offered.
    fixed_length: block length of `fixed`.
    score_every: tokens of a session after which `goodput` asks the arms that it does not play how they would have done;
        more often at a session's beginning.
    max_scored_sessions: sessions in which it asks so at a time. In the others only the arms that are played say it.
    score_share: share of the time that asking one of them may cost, as steps beside it are slower.
    probe_share: share of the time that it spends on arms that have not been played for long.
    """

    candidate_lengths: tuple[int, ...] = (0, 2, 4, 8)
    reward: Literal["goodput", "acceptance"] = "goodput"
    exploration: float = Field(default=0.7, gt=0, le=100, allow_inf_nan=False)
    fixed_arm: str = ""
    fixed_length: int = Field(default=4, ge=0, le=MAX_CANDIDATE_LENGTH)
    score_every: int = Field(default=32, ge=1, le=1024)
    max_scored_sessions: int = Field(default=8, ge=0)
    score_share: float = Field(default=0.005, ge=0, le=1, allow_inf_nan=False)
    probe_share: float = Field(default=0.005, ge=0, le=1, allow_inf_nan=False)

    @field_validator("candidate_lengths")
    @classmethod
    def _check_lengths(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Sorted, without repeats."""
        if not lengths:
            raise ValueError("at least one block length is needed")
        if min(lengths) < 0 or max(lengths) > MAX_CANDIDATE_LENGTH:
            raise ValueError(f"block lengths lie in 0 to {MAX_CANDIDATE_LENGTH}, got {list(lengths)}")
        return tuple(sorted(set(lengths)))

    @model_validator(mode="after")
    def _check_reward(self) -> "PolicySettings":
        """A reward that no candidate can earn is a mistake."""
        if self.reward == "acceptance" and self.candidate_lengths == (0,):
            raise KeyFault("reward", "acceptance is not defined at length 0: give candidate_lengths above 0")
        return self

"""Plans, sessions and infos for tests of the router."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from specmesh.router.arms import ArmFacts, DraftScope
from specmesh.router.callers import Caller
from specmesh.router.offer import Offer
from specmesh.router.policies import Arm
from specmesh.router.registration import Target
from specmesh.router.request import Plan
from specmesh.router.session import Session
from specmesh.router.text import TextStream
from specmesh.runtime.contract import CONTRACT_VERSION
from specmesh.runtime.types import Rule, Sampling, ServiceInfo

VOCABULARY = 100
CONTEXT = 64
INFO = ServiceInfo(
    contract_version=CONTRACT_VERSION,
    model_digest="a" * 64,
    tokenizer_digest="",
    vocabulary_size=VOCABULARY,
    max_context_tokens=CONTEXT,
    kind="table",
    model_name="target",
    build="test",
    max_block_length=16,
)
TARGET = Target(INFO, "target", frozenset({2}), "f" * 64)
EVERYBODY = Caller("host test", frozenset({"good", "shady"}))


class Words:
    """A tokenizer of one id per word, of 10 characters at most."""

    def __init__(self) -> None:
        self.num_encoded = 0

    def least_tokens(self, num_characters: int) -> int:
        """Every tenth character begins another word."""
        return -(-num_characters // 10)

    def encode_text(self, text: str) -> Sequence[int]:
        """3, 4, 5, ..."""
        self.num_encoded += 1
        return [3 + index for index, _ in enumerate(text.split())]

    def stream(self, stop_strings: Sequence[str]) -> TextStream:
        """No text comes out of words that are only counted."""
        raise AssertionError("these tests ask for no text")

    def render_chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """All contents as one text."""
        return " ".join(content for _, content in messages)

    def encode_rendered(self, text: str) -> Sequence[int]:
        """As any text."""
        return self.encode_text(text)


def arm_facts(pool: str, *, trusted: bool = True, sends_rows: bool = True) -> ArmFacts:
    """An arm of the pool, with a digest made of its name."""
    return ArmFacts(Arm(pool, pool.encode().hex().ljust(64, "0")), trusted, sends_rows)


def make_offer(**changes: Any) -> Offer:
    """Pools `good` (trusted) and `shady` (untrusted)."""
    offer = Offer(
        target=TARGET,
        text=Words(),
        arms=(arm_facts("good"), arm_facts("shady", trusted=False)),
        untrusted_pools=frozenset({"shady"}),
        workloads=frozenset({"code"}),
        max_text_bytes=1000,
        max_messages=20,
    )
    return replace(offer, **changes)


def make_plan(**changes: Any) -> Plan:
    """Three prompt tokens, up to ten more, BLOCK."""
    plan = Plan(
        request_id="r",
        prompt=(5, 6, 7),
        continuation=(),
        sampling=Sampling(),
        rule=Rule.BLOCK,
        seed=None,
        max_output_tokens=10,
        stop_token_ids=frozenset({2}),
        stop_strings=(),
        scope=DraftScope(frozenset({"good"}), needs_trust=True),
    )
    return replace(plan, **changes)


def counting_keys() -> Callable[[], int]:
    """1, 2, 3, ... instead of entropy."""
    numbers = count(1)
    return lambda: next(numbers)


def make_session(**changes: Any) -> Session:
    """A session of `make_plan(**changes)`."""
    return Session(make_plan(**changes), session_id=77, target=INFO, draw_key=counting_keys())

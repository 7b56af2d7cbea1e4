"""What a router offers at the moment a request comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specmesh.router.arms import ArmFacts
from specmesh.router.registration import Target
from specmesh.router.text import TextStream


class TextModel(Protocol):
    """What a request needs of a tokenizer."""

    def least_tokens(self, num_characters: int) -> int:
        """Tokens that a text of so many characters has at least; 0 where its length says nothing of them."""

    def encode_text(self, text: str) -> Sequence[int]:
        """Ids of a text with the model's special tokens."""

    def render_chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """(role, content) pairs as the model's own chat template writes them."""

    def encode_rendered(self, text: str) -> Sequence[int]:
        """Ids of what `render_chat` gave."""

    def stream(self, stop_strings: Sequence[str]) -> TextStream:
        """The text of one session's output."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What this router serves at the moment, and its limits."""

    target: Target
    text: TextModel | None
    """None for a target whose ids have no text."""
    arms: tuple[ArmFacts, ...]
    """Every arm known, in whatever state."""
    untrusted_pools: frozenset[str]
    workloads: frozenset[str]
    max_text_bytes: int
    max_messages: int

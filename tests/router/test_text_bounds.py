"""Texts that cannot fit by their length alone: refused before they are tokenized, and none that would have fitted."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from tiny_tokenizers import LINES, byte_fallback, byte_level_bpe, every_kind, to_bytes
from tokenizers import AddedToken, normalizers, pre_tokenizers

from specmesh.router.text import Tokenizer
from specmesh.router.text.bounds import most_characters

PIECES = [
    "a",
    "b",
    " ",
    "\n",
    "é",
    "e\u0301",
    "\u03b1\u0313\u0300\u0345",
    "東",
    "🙂",
    "x" * 9,
    " " * 9,
    "<s>",
    "→plain",
    *LINES,
]


def texts(count: int) -> list[str]:
    """Of pieces that are hard for one kind or another, many of them together."""
    draw = random.Random(3)
    drawn = ["".join(draw.choices(PIECES, k=draw.randint(1, 60))) for _ in range(count)]
    return [*drawn, *(piece * 200 for piece in PIECES)]


def bounded() -> dict[str, bytes]:
    """Tokenizers of which it can be said how many characters a token stands for at most."""
    composed, split, digits = byte_level_bpe(), byte_level_bpe(), byte_level_bpe()
    composed.normalizer = normalizers.NFC()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "isolated"), level])
    digits.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    kinds = {"plain": byte_level_bpe(), "composed": composed, "split": split, "digits": digits}
    kinds |= {"byte fallback": byte_fallback(strip=False), "stripped": byte_fallback(strip=True)}
    return {name: to_bytes(tokenizer) for name, tokenizer in kinds.items()}


@pytest.mark.parametrize(("name", "raw"), bounded().items(), ids=list(bounded()))
def test_no_text_has_fewer_tokens_than_its_length_says(name: str, raw: bytes) -> None:
    tokenizer = Tokenizer(raw)
    least = [(text, tokenizer.least_tokens(len(text))) for text in texts(300)]
    assert all(count <= len(tokenizer.encode_text(text)) for text, count in least)
    assert tokenizer.least_tokens(100_000) > 100


def removing(raw: dict[str, Any]) -> None:
    raw["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}, raw["pre_tokenizer"],
    ]}  # fmt: skip


def swallowing(raw: dict[str, Any]) -> None:
    raw["added_tokens"][0]["rstrip"] = True


def folding(raw: dict[str, Any]) -> None:
    raw["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}


def shortening(raw: dict[str, Any]) -> None:
    raw["normalizer"] = {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}


def without_bytes(raw: dict[str, Any]) -> None:
    del raw["model"]["vocab"]["Ġ"]
    raw["model"]["merges"] = []


@pytest.mark.parametrize("change", [removing, swallowing, folding, shortening, without_bytes])
def test_where_a_token_may_stand_for_any_number_of_characters_nothing_is_said(
    change: Callable[[dict[str, Any]], None],
) -> None:
    raw = json.loads(to_bytes(byte_level_bpe()))
    assert most_characters(raw)
    change(raw)
    assert most_characters(raw) is None


@pytest.mark.parametrize("part", ["model", "normalizer"])
def test_of_a_part_that_does_not_say_what_it_is_nothing_is_said(part: str) -> None:
    """Files of old have none of these types, and tokenizers takes them as they are."""
    tokenizer = byte_level_bpe()
    tokenizer.normalizer = normalizers.Prepend("x")
    raw = json.loads(to_bytes(tokenizer))
    assert most_characters(raw)
    del raw[part]["type"]
    old = Tokenizer(json.dumps(raw).encode())
    assert old.least_tokens(10**9) == 0
    assert old.encode_text("a b") == Tokenizer(to_bytes(tokenizer)).encode_text("a b")


def test_kinds_with_words_for_all_that_is_unknown_have_no_bound() -> None:
    for name in ("metaspace", "word_level", "word_piece", "word_suffix"):
        assert Tokenizer(to_bytes(every_kind()[name])).least_tokens(10**9) == 0


def test_the_longest_token_counts_added_ones_too() -> None:
    tokenizer = byte_level_bpe()
    before = most_characters(json.loads(to_bytes(tokenizer)))
    tokenizer.add_tokens([AddedToken("y" * 100)])
    assert before is not None
    assert before < 100
    assert most_characters(json.loads(to_bytes(tokenizer))) == 100

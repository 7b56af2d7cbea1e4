"""How much text a token can stand for at most, where the form of a tokenizer says so.

It does where every character of a text is in some token: byte-level BPE, or BPE that falls back to bytes, with stages
before it that drop nothing. A word for all that is unknown, whitespace that is stripped, or an added token that takes
the spaces beside it along may stand for any length, and then nothing is said; nor of a part that does not say what it
is, as files of old write them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

NFC_SHRINKS = 4
"""Characters that canonical composition makes one of at most."""
Stage = Mapping[str, Any]


def most_characters(tokenizer: Mapping[str, Any]) -> int | None:
    """Of a text that one token of this tokenizer.json stands for at most; None where it cannot be said."""
    model, added = tokenizer["model"], tokenizer.get("added_tokens") or ()
    shrinks = _normalizer_shrinks(tokenizer.get("normalizer"))
    before = _stages(tokenizer.get("pre_tokenizer"), "pretokenizers")
    if shrinks is None or not all(map(_keeps_all, before)) or not _covers_all(model, before):
        return None
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None
    longest = max(len(piece) for piece in (*model["vocab"], *(token["content"] for token in added)))
    return shrinks * longest


def _stages(stage: Stage | None, below: str) -> Sequence[Stage]:
    if stage is None:
        return ()
    return tuple(stage[below]) if stage.get("type") == "Sequence" else (stage,)


def _normalizer_shrinks(normalizer: Stage | None) -> int | None:
    """Characters of a text that become one at most; None for a normalizer that may drop any number."""
    shrinks = 1
    for stage in _stages(normalizer, "normalizers"):
        kind = stage.get("type")
        if kind == "NFC":
            shrinks *= NFC_SHRINKS
        elif kind == "Replace":
            pattern = stage["pattern"].get("String")
            if pattern is None or len(pattern) > len(stage["content"]):
                return None
        elif kind not in ("Prepend", "NFD"):
            return None
    return shrinks


def _keeps_all(stage: Stage) -> bool:
    kind = stage.get("type")
    if kind in ("Split", "Punctuation"):
        return stage.get("behavior") != "Removed"
    return kind in ("ByteLevel", "Digits", "Metaspace")


def _covers_all(model: Stage, before: Sequence[Stage]) -> bool:
    """Whether every byte is a token, so that nothing is unknown."""
    if model.get("type") != "BPE":
        return False
    vocabulary = model["vocab"]
    if model.get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    return any(stage.get("type") == "ByteLevel" for stage in before) and _letters_of_bytes() <= vocabulary.keys()


def _letters_of_bytes() -> frozenset[str]:
    """The characters that byte-level BPE writes bytes as."""
    from tokenizers.pre_tokenizers import ByteLevel

    return frozenset(ByteLevel.alphabet())

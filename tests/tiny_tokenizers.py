"""Small tokenizers of every kind that models use, built in a moment: `tokenizer.json` bytes by name."""

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["<s>", "</s>"]
LINES = [
    "The quick brown fox jumps over the lazy dog.",
    "def add(a, b):\n    return a + b",
    "Naïve café, 東京 and 🙂🙃 don't mind.",
]


def byte_level_bpe(lines: Sequence[str] = LINES, size: int = 400) -> Tokenizer:
    """GPT-2's kind: any bytes, characters split over tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_tokens([AddedToken("→plain", special=False)])
    return tokenizer


def byte_fallback(*, strip: bool) -> Tokenizer:
    """Llama 2's kind (`strip`) or Gemma's: `▁` for spaces, `<0xE2>` for bytes."""
    pieces = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "é", "▁▁x", "y▁z"]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    stages = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*stages, decoders.Strip(" ", 1, 0)] if strip else stages)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def metaspace(scheme: str = "always") -> Tokenizer:
    """T5's kind."""
    pieces = ["<unk>", *SPECIAL, "▁", "▁a", "b", "▁▁x", "y▁z", "é"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_level() -> Tokenizer:
    """No decoder at all: words joined by spaces."""
    words = ["<unk>", *SPECIAL, "alpha", "beta", "gamma", ".", "don't"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's kind."""
    words = ["<unk>", *SPECIAL, "do", "##ing", "not", "n't", ".", "'", "'s", "##.", "!"]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece("##", cleanup=True)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_suffix() -> Tokenizer:
    """The first GPT's kind: `</w>` ends a word."""
    pieces = ["<unk>", *SPECIAL, "al", "pha</w>", "be", "ta</w>", "</w>"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def strip_each() -> Tokenizer:
    """`Strip` piece by piece, without `Fuse`. (At both ends `tokenizers` panics on a piece of one space.)"""
    tokenizer = metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 2, 0)])
    return tokenizer


def of_pieces(pieces: Sequence[str]) -> Tokenizer:
    """Exactly these pieces, decoded as they are."""
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=pieces[0]))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def every_kind() -> dict[str, Tokenizer]:
    """One of each."""
    return {
        "byte_level": byte_level_bpe(),
        "byte_fallback_strip": byte_fallback(strip=True),
        "byte_fallback": byte_fallback(strip=False),
        "metaspace": metaspace(),
        "metaspace_never": metaspace("never"),
        "word_level": word_level(),
        "word_piece": word_piece(),
        "word_suffix": word_suffix(),
        "strip_each": strip_each(),
    }


def to_bytes(tokenizer: Tokenizer, **changes: object) -> bytes:
    """Its tokenizer.json, with top-level entries changed."""
    content = json.loads(tokenizer.to_str())
    return json.dumps({**content, **changes}).encode()

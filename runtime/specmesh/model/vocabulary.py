"""What token ids mean: a digest two services compare, and hashes that name the first id that differs. No torch."""

import json
from dataclasses import dataclass
from hashlib import blake2b, sha256

HASH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of a tokenizer.

    `size`: the largest id + 1. `digest`: SHA-256 over the id-ordered pieces, each as its length (uint32,
    little-endian) and its UTF-8 bytes. `hashes`: the first four bytes of the BLAKE2b-256 of each piece, by id.
    """

    size: int
    digest: str
    hashes: bytes


def vocabulary_of(tokenizer_json: bytes) -> Vocabulary:
    """Of a tokenizer.json. Raises ValueError when it holds no vocabulary."""
    pieces = pieces_of(tokenizer_json)
    digest = sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    hashes = b"".join(blake2b(piece, digest_size=32).digest()[:HASH_BYTES] for piece in pieces)
    return Vocabulary(len(pieces), digest.hexdigest(), hashes)


def pieces_of(tokenizer_json: bytes) -> list[bytes]:
    """UTF-8 pieces by id, added tokens included; an id without a piece has an empty one."""
    content = json.loads(tokenizer_json)
    vocabulary = content.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, dict):
        by_id = {int(token_id): piece for piece, token_id in vocabulary.items()}
    else:  # Unigram: a list of (piece, score)
        by_id = {token_id: entry[0] for token_id, entry in enumerate(vocabulary)}
    by_id |= {added["id"]: added["content"] for added in content.get("added_tokens", [])}
    if not by_id:
        raise ValueError("tokenizer.json: it holds no vocabulary")
    return [by_id.get(token_id, "").encode() for token_id in range(max(by_id) + 1)]

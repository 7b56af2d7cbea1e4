"""What is held out: decided by a hash of a document's or topic's name, before any text is read."""

import hashlib

HELD_OUT_PERCENT = 4


def is_held_out(name: str) -> bool:
    """Whether what is called `name` (a document, a topic, a task) is kept from training. The same on every machine."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 100 < HELD_OUT_PERCENT

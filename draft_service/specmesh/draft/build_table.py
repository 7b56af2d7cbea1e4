"""`python -m specmesh.draft.build_table`: an n-gram table of a domain, from its texts and the target's tokenizer."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from specmesh.draft.ngram_counts import CountSettings, count_levels
from specmesh.draft.ngram_file import MAX_ORDER, NgramTable, save_table
from specmesh.model.vocabulary import vocabulary_of

BATCH_TEXTS = 64


def build_table(
    tokenizer_json: bytes,
    texts: Sequence[str],
    *,
    name: str,
    eos_tokens: Sequence[str] = (),
    order: int = 3,
    max_continuations: int = 16,
    min_count: int = 2,
) -> NgramTable:
    """Count `texts` under a tokenizer. Raises ValueError for an EOS token that the tokenizer does not have."""
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    vocabulary = vocabulary_of(tokenizer_json)
    settings = CountSettings(vocabulary.size, order, max_continuations, min_count)
    return NgramTable(
        levels=count_levels(list(_encoded(tokenizer, texts)), settings),
        vocabulary_size=vocabulary.size,
        name=name,
        tokenizer_digest=vocabulary.digest,
        vocabulary_hashes=vocabulary.hashes,
        eos_token_ids=frozenset(_id_of(tokenizer, token) for token in eos_tokens),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    started = time.monotonic()
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in options.files]
    table = build_table(
        options.tokenizer.read_bytes(),
        texts,
        name=options.name or options.output.stem,
        eos_tokens=options.eos_token,
        order=options.order,
        max_continuations=options.max_continuations,
        min_count=options.min_count,
    )
    save_table(options.output, table)
    contexts = ", ".join(f"{len(level.keys)} of {level.length} tokens" for level in table.levels)
    size = options.output.stat().st_size / 1e6
    sys.stdout.write(f"{options.output}: contexts {contexts}; {size:.1f} MB; {time.monotonic() - started:.1f} s\n")
    return 0


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[NDArray[np.uint32]]:
    for start in range(0, len(texts), BATCH_TEXTS):
        for encoding in tokenizer.encode_batch_fast(list(texts[start : start + BATCH_TEXTS]), add_special_tokens=False):
            yield np.array(encoding.ids, dtype=np.uint32)


def _id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id: int | None = tokenizer.token_to_id(token)
    if token_id is None:
        raise ValueError(f"the tokenizer has no token {token}")
    return token_id


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specmesh.draft.build_table", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="texts of the domain (UTF-8)")
    parser.add_argument("--tokenizer", type=Path, required=True, help="the target's tokenizer.json")
    parser.add_argument("--output", type=Path, required=True, help="the table (.npz)")
    parser.add_argument("--name", help="name of the table, for people; by default the output's")
    parser.add_argument("--eos-token", action="append", default=[], metavar="TOKEN", help="ends a text")
    parser.add_argument("--order", type=int, default=3, choices=range(1, MAX_ORDER + 1), help="3 is a trigram")
    parser.add_argument("--max-continuations", type=int, default=16, help="kept per context")
    parser.add_argument("--min-count", type=int, default=2, help="contexts seen less often are left out")
    return parser


if __name__ == "__main__":
    sys.exit(main())

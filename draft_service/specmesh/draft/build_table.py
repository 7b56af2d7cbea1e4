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
from specmesh.draft.past import USUAL_WEIGHTS
from specmesh.model.demo import demo_folder
from specmesh.model.tokenizer_files import TokenizerFiles, read_tokenizer_files
from specmesh.model.vocabulary import vocabulary_of

BATCH_TEXTS = 64


def build_table(
    files: TokenizerFiles,
    texts: Sequence[str],
    *,
    name: str,
    order: int = 3,
    max_continuations: int = 16,
    min_count: int = 2,
    context_weights: Sequence[float] = USUAL_WEIGHTS,
) -> NgramTable:
    """Count `texts` under a tokenizer; no n-gram spans two of them. Without `context_weights` the table is static."""
    tokenizer = Tokenizer.from_str(files.tokenizer_json.decode())
    vocabulary = vocabulary_of(files.tokenizer_json)
    settings = CountSettings(vocabulary.size, order, max_continuations, min_count)
    return NgramTable(
        levels=count_levels(list(_encoded(tokenizer, texts)), settings),
        vocabulary_size=vocabulary.size,
        name=name,
        tokenizer_digest=vocabulary.digest,
        vocabulary_hashes=vocabulary.hashes,
        eos_token_ids=frozenset(files.eos_token_ids),
        context_weights=tuple(context_weights),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    started = time.monotonic()
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in options.files]
    table = build_table(
        _tokenizer_files(options.tokenizer),
        texts,
        name=options.name or options.output.stem,
        order=options.order,
        max_continuations=options.max_continuations,
        min_count=options.min_count,
        context_weights=() if options.static else USUAL_WEIGHTS,
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


def _tokenizer_files(source: str) -> TokenizerFiles:
    """Of `demo`, a model's folder, or the tokenizer.json in it. Raises ValueError."""
    path = demo_folder() if source == "demo" else Path(source)
    return read_tokenizer_files(path if path.is_dir() else path.parent)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specmesh.draft.build_table", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="texts of the domain (UTF-8)")
    parser.add_argument("--tokenizer", required=True, help="the target: `demo`, its folder, or its tokenizer.json")
    parser.add_argument("--output", type=Path, required=True, help="the table (.npz)")
    parser.add_argument("--name", help="name of the table, for people; by default the output's")
    parser.add_argument("--order", type=int, default=3, choices=range(1, MAX_ORDER + 1), help="3 is a trigram")
    parser.add_argument("--max-continuations", type=int, default=16, help="kept per context")
    parser.add_argument("--min-count", type=int, default=2, help="contexts seen less often are left out")
    parser.add_argument("--static", action="store_true", help="a table that does not learn from the session")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""N-gram tables of a domain, counted from what the target wrote."""

from pathlib import Path

from specmesh.draft.ngram_counts import CountSettings, count_levels
from specmesh.draft.ngram_file import NgramTable
from specmesh.model.tokenizer_files import read_tokenizer_files
from specmesh.model.vocabulary import vocabulary_of
from specmesh.training.corpus import DOMAINS
from specmesh.training.write import Texts


def domain_table(texts: Texts, domain: str, target: Path, settings: CountSettings, *, name: str) -> NgramTable:
    """Counts of one domain's rows, smoothed; prompts are counted with the answers, for they are of the domain too."""
    files = read_tokenizer_files(target)
    vocabulary = vocabulary_of(files.tokenizer_json)
    rows = (texts.domains == DOMAINS.index(domain)).nonzero()[0]
    written = [texts.tokens[row][texts.valid[row]] for row in rows]
    return NgramTable(
        levels=count_levels(written, settings),
        vocabulary_size=vocabulary.size,
        name=name,
        tokenizer_digest=vocabulary.digest,
        vocabulary_hashes=vocabulary.hashes,
        eos_token_ids=frozenset(files.eos_token_ids),
    )

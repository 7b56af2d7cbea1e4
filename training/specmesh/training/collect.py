"""Collect: read the sources, split off what is held out, write prompts, and turn all of it into the target's tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer

from specmesh.training.corpus import DOMAINS, Corpus, IntArray, Ragged, Side
from specmesh.training.documents import Document, read_documents, read_sources
from specmesh.training.prompts import PromptWriter, gather, read_templates, read_topics
from specmesh.training.split import is_held_out

_HERE = Path(__file__).parent
_LONGEST_PROMPT = 240
_NUM_JSON_DOCUMENTS = 4000


@dataclass(frozen=True, slots=True)
class CollectSettings:
    """How much to collect. Prompts are counted per domain."""

    max_document_tokens: Mapping[str, int]
    num_training_prompts: Mapping[str, int]
    num_held_out_prompts: int
    seed: int
    sources: Path = _HERE / "sources.toml"
    templates: Path = _HERE / "prompts.toml"


class _Encoder:
    """The target's tokenizer, in bulk."""

    def __init__(self, target: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(target)
        self.dtype: npt.DTypeLike = np.uint16 if len(self._tokenizer) <= 1 << 16 else np.uint32
        self.end_ids = (self._tokenizer.eos_token_id,)

    def texts(self, texts: Sequence[str]) -> list[list[int]]:
        return list(self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]) if texts else []

    def chats(self, requests: Sequence[str]) -> list[list[int]]:
        return self.texts([self._render([{"role": "user", "content": request}]) for request in requests])

    def turn_start(self) -> int:
        """Tokens of a rendered chat that a second user's turn, after the answer's end token, does not repeat."""
        first = [
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": "B"},
            {"role": "user", "content": "C"},
        ]
        once, twice = self.texts([self._render(first[2:]), self._render(first)])
        same = 0
        while same < len(once) and once[-1 - same] == twice[-1 - same]:
            same += 1
        return len(once) - same + (once[len(once) - same] in self.end_ids)

    def _render(self, messages: list[dict[str, str]]) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def collect(target: Path, places: Mapping[str, str], wordnet: Path, settings: CollectSettings) -> Corpus:
    """Collect a corpus for the target in folder `target`.

    `places` fills the sources' roots; `wordnet` is the folder with ``index.noun``.
    """
    encoder = _Encoder(target)
    documents: list[Document] = []
    about: list[dict[str, Any]] = []
    for source in read_sources(settings.sources):
        read = list(read_documents(source, places))
        documents += read
        size = sum(len(document.text) for document in read)
        about.append(
            {
                "name": source.name,
                "licence": source.licence,
                "domain": source.domain,
                "documents": len(read),
                "characters": size,
            }
        )
    templates = read_templates(settings.templates)
    topics = read_topics(wordnet)
    encoded = {domain: _encode_documents(encoder, documents, domain, settings) for domain in ("prose", "code")}
    sides = []
    for held_out in (False, True):
        writer = PromptWriter(
            templates, gather(templates, topics, documents, held_out=held_out), settings.seed + held_out
        )
        counts = dict.fromkeys(DOMAINS, settings.num_held_out_prompts) if held_out else settings.num_training_prompts
        of_side = {domain: encoded[domain][held_out] for domain in encoded}
        if not held_out:
            of_side["json"] = Ragged.of(
                encoder.texts([writer.json_document() for _ in range(_NUM_JSON_DOCUMENTS)]), encoder.dtype
            )
        sides.append(_side(encoder, writer, of_side, counts, settings.seed))
    return Corpus(sides[0], sides[1], encoder.turn_start(), encoder.end_ids, about)


def _encode_documents(
    encoder: _Encoder, documents: Sequence[Document], domain: str, settings: CollectSettings
) -> tuple[Ragged, Ragged]:
    """(training, held out) documents of a domain, up to `max_document_tokens` in an order that mixes the sources."""
    mine = [document for document in documents if document.domain == domain]
    np.random.default_rng(settings.seed).shuffle(mine)
    training, held_out, budget = [], [], settings.max_document_tokens[domain]
    for document, tokens in zip(mine, encoder.texts([document.text for document in mine]), strict=True):
        if is_held_out(document.name):
            held_out.append(tokens[:4000])
        elif budget > 0:
            budget -= len(tokens)
            training.append(tokens)
    return Ragged.of(training, encoder.dtype), Ragged.of(held_out, encoder.dtype)


def _side(
    encoder: _Encoder, writer: PromptWriter, documents: dict[str, Ragged], counts: Mapping[str, int], seed: int
) -> Side:
    chats = {
        domain: _short(encoder.chats([writer.chat(domain) for _ in range(counts[domain])]), encoder.dtype)
        for domain in DOMAINS
    }
    random = np.random.default_rng(seed)
    openings = {domain: _cut(documents[domain], counts[domain], random) for domain in ("prose", "code")}
    openings["json"] = _json_openings(encoder, writer, counts["json"], random)
    openings["copying"] = _short(encoder.texts([writer.repeated() for _ in range(counts["copying"])]), encoder.dtype)
    return Side(documents, chats, openings)


def _short(sequences: Sequence[Sequence[int]], dtype: npt.DTypeLike) -> Ragged:
    return Ragged.of((sequence for sequence in sequences if 0 < len(sequence) <= _LONGEST_PROMPT), dtype)


def _cut(documents: Ragged, count: int, random: np.random.Generator) -> Ragged:
    """Openings of 16 to 96 tokens from anywhere in the documents."""
    openings: list[IntArray] = []
    for _ in range(count):
        document = documents[int(random.integers(len(documents)))]
        length = int(random.integers(16, 97))
        start = int(random.integers(0, max(1, len(document) - length)))
        openings.append(document[start : start + length])
    return Ragged.of([opening.tolist() for opening in openings], documents.tokens.dtype)


def _json_openings(encoder: _Encoder, writer: PromptWriter, count: int, random: np.random.Generator) -> Ragged:
    texts = [writer.json_document() for _ in range(count)]
    tokens = encoder.texts(texts)
    return Ragged.of([sequence[: int(random.integers(12, 80))] for sequence in tokens], encoder.dtype)

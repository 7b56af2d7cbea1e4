"""Collecting: what is held out never meets training, and files keep what they are given."""

from pathlib import Path

import numpy as np
from training_parts import tiny_corpus, tiny_texts

from specmesh.training.corpus import load_corpus, save_corpus
from specmesh.training.documents import Document, Source, prose_paragraphs, read_documents
from specmesh.training.prompts import PromptWriter, gather
from specmesh.training.split import is_held_out
from specmesh.training.write import joined, load_texts, save_texts

TEMPLATES = {
    "prose": ["Tell me about {a} and {b}.", "Sum up:\n{passage}"],
    "code": ["Write a function that {task}.", "Explain:\n{code}"],
    "json": ["Describe {a} with {fields}.", "Go on:\n{json}"],
    "copying": ["Repeat: {passage}"],
    "tasks": [f"does task {i}" for i in range(200)],
    "verbs": ["sort"],
    "objects": [f"thing {i}" for i in range(200)],
    "fields": ["name", "age", "price", "date", "tags", "url", "id"],
}
TOPICS = [f"topic{i}x" for i in range(400)]
DOCUMENTS = [
    Document(f"d{i}", domain, f"Sentence {i} of a {domain} document, which goes on for a good while. " * 4)
    for i in range(200)
    for domain in ("prose", "code")
]


def test_a_few_percent_are_held_out_and_always_the_same() -> None:
    chosen = [name for name in TOPICS if is_held_out(name)]
    assert 2 <= len(chosen) <= 40
    assert chosen == [name for name in TOPICS if is_held_out(name)]


def test_training_prompts_hold_nothing_that_is_held_out() -> None:
    training = gather(TEMPLATES, TOPICS, DOCUMENTS, held_out=False)
    held_out = gather(TEMPLATES, TOPICS, DOCUMENTS, held_out=True)
    assert not set(training.topics) & set(held_out.topics)
    assert not set(training.tasks) & set(held_out.tasks)
    assert held_out.prose
    writer = PromptWriter(TEMPLATES, training, seed=0)
    prompts = " ".join(writer.chat(domain) for domain in ("prose", "code", "json", "copying") for _ in range(200))
    assert not any(f"{topic} " in prompts or f"{topic}." in prompts for topic in held_out.topics)
    assert not any(f"{document.text[:20]} " in prompts for document in held_out.prose)


def test_the_same_seed_gives_the_same_prompts() -> None:
    material = gather(TEMPLATES, TOPICS, DOCUMENTS, held_out=False)
    first, second = (PromptWriter(TEMPLATES, material, seed=7) for _ in range(2))
    assert [first.chat("json") for _ in range(20)] == [second.chat("json") for _ in range(20)]


def test_paragraphs_of_sentences_are_kept_and_tables_are_not() -> None:
    sentence = (
        "This paragraph is long enough to be kept, and it reads like something that a person might have said. " * 2
    )
    assert prose_paragraphs(f"1 2 3 4\n\n{sentence}\n\nshort.\n\n|----|----|{'=' * 200}.") == sentence.strip()


def test_a_source_gives_its_documents_in_one_order_and_skips_what_is_excluded(tmp_path: Path) -> None:
    for name in ("a", "b", "skipped"):
        (tmp_path / f"{name}.py").write_text(f"# module {name}\n" + "value = compute(value)\n" * 40)
    source = Source("made", "code", "none", "{place}", ["*.py"], 10**6, ["/skipped"])
    first = list(read_documents(source, {"place": str(tmp_path)}))
    assert sorted(document.name for document in first) == ["made:a.py", "made:b.py"]
    assert first == list(read_documents(source, {"place": str(tmp_path)}))


def test_a_corpus_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    corpus = tiny_corpus()
    save_corpus(corpus, tmp_path / "corpus.npz")
    again = load_corpus(tmp_path / "corpus.npz")
    assert again.end_ids == corpus.end_ids
    assert again.sources == corpus.sources
    for domain, ragged in corpus.training.chats.items():
        assert [row.tolist() for row in again.training.chats[domain]] == [row.tolist() for row in ragged]


def test_texts_come_back_as_they_were_saved_and_can_be_joined(tmp_path: Path) -> None:
    texts = tiny_texts()
    save_texts(texts, tmp_path / "texts.npz")
    twice = joined([load_texts(tmp_path / "texts.npz")] * 2)
    assert np.array_equal(twice.tokens[:24], texts.tokens)
    assert np.array_equal(twice.by_target[24:], texts.by_target)
    assert len(twice.domains) == 48

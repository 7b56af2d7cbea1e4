"""Chat prompts by domain, from templates, topics and pieces of documents.

A topic, task or document is wholly for training or wholly held out.
"""

import ast
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from specmesh.training.documents import Document
from specmesh.training.split import is_held_out

_MIN_TOPIC_CHARACTERS = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Material:
    """What templates are filled with; one for training, one for the held-out prompts."""

    topics: Sequence[str]
    tasks: Sequence[str]
    verbs: Sequence[str]
    objects: Sequence[str]
    fields: Sequence[str]
    prose: Sequence[Document]
    code: Sequence[Document]
    signatures: Sequence[str]


def read_templates(path: Path) -> Mapping[str, list[str]]:
    """Templates by domain, and the lists of tasks, verbs, objects and fields."""
    return tomllib.loads(path.read_text())


def read_topics(wordnet: Path) -> list[str]:
    """Nouns that occur in WordNet's tagged texts, of one or two words. `wordnet` is the folder with ``index.noun``."""
    topics = []
    for line in (wordnet / "index.noun").read_text().splitlines():
        if line.startswith(" "):
            continue
        parts = line.split()
        lemma, tagged = parts[0].replace("_", " "), int(parts[3 + int(parts[3]) + 2])
        if tagged and len(lemma) >= _MIN_TOPIC_CHARACTERS and lemma.replace(" ", "").isalpha() and lemma.count(" ") < 2:
            topics.append(lemma)
    return topics


def gather(
    templates: Mapping[str, list[str]], topics: Sequence[str], documents: Sequence[Document], *, held_out: bool
) -> Material:
    """The part of the material on one side of the split. Verbs and fields are grammar, not content, and are shared."""
    mine = [document for document in documents if is_held_out(document.name) == held_out]
    code = [document for document in mine if document.domain == "code"]
    return Material(
        topics=[topic for topic in topics if is_held_out(topic) == held_out],
        tasks=[task for task in templates["tasks"] if is_held_out(task) == held_out],
        verbs=templates["verbs"],
        objects=[thing for thing in templates["objects"] if is_held_out(thing) == held_out],
        fields=templates["fields"],
        prose=[document for document in mine if document.domain == "prose"],
        code=code,
        signatures=[signature for document in code for signature in _signatures(document.text)],
    )


def _signatures(text: str) -> Iterator[str]:
    """``def`` lines with the first line of their docstring, from code that parses."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # C headers, and templates of Python
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (described := ast.get_docstring(node)):
            first = described.splitlines()[0]
            if len(first) > 20 and len(node.args.args) < 6:
                yield f'def {node.name}({ast.unparse(node.args)}):\n    """{first}"""'


class PromptWriter:
    """Fills templates from material with one generator: same seed, same prompts."""

    def __init__(self, templates: Mapping[str, list[str]], material: Material, seed: int) -> None:
        self._templates = templates
        self._material = material
        self._random = np.random.default_rng(seed)
        self._makers: dict[str, Callable[[], str]] = {
            "a": lambda: self._one(material.topics),
            "b": lambda: self._one(material.topics),
            "task": lambda: self._one(material.tasks),
            "verb": lambda: self._one(material.verbs),
            "object": lambda: self._one(material.objects),
            "signature": lambda: self._one(material.signatures),
            "passage": self.passage,
            "code": self.code,
            "json": self.json_document,
            "record": self._record_in_words,
            "fields": lambda: ", ".join(self._some(material.fields, 2, 6)),
            "count": lambda: str(self._random.integers(2, 6)),
        }

    def chat(self, domain: str) -> str:
        """A request in a domain, as the user's turn."""
        template = self._one(self._templates[domain])
        values = {name: make() for name, make in self._makers.items() if "{" + name + "}" in template}
        return template.format(**values)

    def passage(self) -> str:
        """One to three sentences of prose, 100 to 500 characters."""
        paragraphs = self._one(self._material.prose).text.split("\n\n")
        paragraph = self._one(paragraphs)
        end = paragraph.rfind(". ", 100, int(self._random.integers(150, 500)))
        return paragraph[: end + 1] if end > 0 else paragraph[:500]

    def code(self) -> str:
        """Four to sixteen lines of code."""
        lines = self._one(self._material.code).text.splitlines()
        count = int(self._random.integers(4, 17))
        start = int(self._random.integers(0, max(1, len(lines) - count)))
        while start and lines[start].startswith((" ", "\t", ")")) and self._random.random() < 0.9:
            start -= 1
        return "\n".join(lines[start : start + count])[:700]

    def json_document(self) -> str:
        """A made-up JSON document: a list of records that share their fields."""
        fields = self._some(self._material.fields, 2, 6)
        records = [{field: self._value(field) for field in fields} for _ in range(int(self._random.integers(2, 6)))]
        wrapped = (
            {self._one(self._material.topics).replace(" ", "_"): records} if self._random.random() < 0.5 else records
        )
        return json.dumps(wrapped, indent=self._one([None, 2, 2, 4]))

    def repeated(self) -> str:
        """A passage or some code twice, cut off early in the second: what follows is a copy."""
        make = self._one([self.passage, self.passage, self.code, self.json_document])
        text = make()
        return f"{text}\n\n{text[: max(12, len(text) // 8)]}"

    def _record_in_words(self) -> str:
        fields = self._some(self._material.fields, 3, 6)
        return "\n".join(f"{field}: {self._value(field)}" for field in fields)

    def _value(self, field: str) -> object:
        kinds: dict[str, Callable[[], object]] = {
            "id": lambda: int(self._random.integers(1, 1000)),
            "age": lambda: int(self._random.integers(18, 90)),
            "year": lambda: int(self._random.integers(1950, 2025)),
            "quantity": lambda: int(self._random.integers(1, 50)),
            "price": lambda: round(float(self._random.uniform(1, 500)), 2),
            "rating": lambda: round(float(self._random.uniform(1, 5)), 1),
            "enabled": lambda: bool(self._random.random() < 0.5),
            "date": lambda: (
                f"20{self._random.integers(10, 25)}-{self._random.integers(1, 13):02}-{self._random.integers(1, 29):02}"
            ),
            "tags": lambda: self._some(self._material.topics, 1, 4),
            "email": lambda: f"{self._word()}@example.com",
            "status": lambda: self._one(["active", "inactive", "pending", "done"]),
            "url": lambda: f"https://example.com/{self._word()}",
        }
        return kinds.get(field, self._word)()

    def _word(self) -> str:
        return self._one(self._material.topics)

    def _one(self, items: Sequence[T]) -> T:
        return items[int(self._random.integers(len(items)))]

    def _some(self, items: Sequence[T], low: int, high: int) -> list[T]:
        chosen = self._random.choice(len(items), size=int(self._random.integers(low, high)), replace=False)
        return [items[int(i)] for i in chosen]

"""A tiny target with a corpus and texts of its own, for the tests of training."""

import numpy as np
import torch
from model_builders import VOCABULARY, plain_model
from transformers import LlamaForCausalLM

from specmesh.training.corpus import DOMAINS, Corpus, Ragged, Side
from specmesh.training.decode import Scripts, Writer, Written
from specmesh.training.write import Texts

END = VOCABULARY - 1


def tiny_target() -> LlamaForCausalLM:
    return plain_model()


def tiny_corpus() -> Corpus:
    random = np.random.default_rng(3)

    def ragged(count: int, length: int) -> Ragged:
        return Ragged.of([random.integers(0, END, size=length).tolist() for _ in range(count)], np.uint16)

    def side() -> Side:
        documents = {"prose": ragged(3, 400), "code": ragged(3, 400)}
        return Side(
            documents, {domain: ragged(5, 6) for domain in DOMAINS}, {domain: ragged(5, 4) for domain in DOMAINS}
        )

    return Corpus(side(), side(), 2, (END,), [{"name": "made up", "licence": "none", "domain": "code"}])


def tiny_texts(num_rows: int = 24, length: int = 32) -> Texts:
    random = np.random.default_rng(4)
    tokens = random.integers(0, VOCABULARY, size=(num_rows, length)).astype(np.uint16)
    by_target = np.tile(np.arange(length) >= 8, (num_rows, 1))
    domains = (np.arange(num_rows) % len(DOMAINS)).astype(np.int8)
    return Texts(tokens, by_target, np.ones_like(by_target), domains, np.ones(num_rows))


def write_rows(target: LlamaForCausalLM, prompts: list[list[list[int]]], *, length: int, temperature: float) -> Written:
    """One row for each list of prompts."""
    tokens = torch.zeros(len(prompts), length, dtype=torch.long)
    last = torch.zeros(len(prompts), length, dtype=torch.bool)
    lengths = torch.zeros(len(prompts), 1, dtype=torch.long)
    for row, parts in enumerate(prompts):
        laid = [token for part in parts for token in part]
        tokens[row, : len(laid)] = torch.tensor(laid)
        lengths[row] = len(laid)
        end = -1
        for part in parts:
            end += len(part)
            last[row, end] = True
    temperatures = torch.full((len(prompts),), temperature)
    writer = Writer(target, num_rows=len(prompts), length=length, temperatures=temperatures, end_ids=(END,))
    return writer.write(Scripts(tokens, last, lengths))

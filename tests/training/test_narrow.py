"""Narrowing a head takes what another domain says, and leaves the rest as it was."""

import numpy as np
import torch
from training_parts import END, tiny_corpus, tiny_texts

from specmesh.training.narrow import narrowed

COUNT = 5


def test_what_the_other_domain_says_most_for_each_time_goes() -> None:
    texts, corpus = tiny_texts(), tiny_corpus()
    prose = np.flatnonzero(texts.domains == 0)
    loud = [3, 7, 11, 19, 23]
    texts.tokens[prose, 8:28] = np.tile(loud, 4)  # prose says hardly anything else
    texts.tokens[texts.domains == 1] = np.where(
        np.isin(texts.tokens[texts.domains == 1], loud), 2, texts.tokens[texts.domains == 1]
    )
    ids = torch.tensor([1, 2, *loud, 29, 31, END], dtype=torch.int32).sort().values
    stored = {
        "token_ids": ids,
        "head.rows": torch.arange(len(ids) * 2, dtype=torch.int8).reshape(-1, 2),
        "head.rows.scale": torch.arange(len(ids)).half()[:, None],
        "head.mix": torch.ones(2, 2, dtype=torch.int8),
    }
    left = narrowed(stored, texts, corpus, own=["code"], against=["prose"], count=COUNT)
    kept = [index for index, token in enumerate(ids.tolist()) if token not in loud]
    assert left["token_ids"].tolist() == [ids[index] for index in kept]
    assert torch.equal(left["head.rows"], stored["head.rows"][kept])
    assert torch.equal(left["head.rows.scale"], stored["head.rows.scale"][kept])
    assert torch.equal(left["head.mix"], stored["head.mix"])

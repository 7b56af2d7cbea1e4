"""Weights of a table's trust in the session's own past: the estimate, the fit, and the arm that is measured."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from model_builders import VOCABULARY, random_ids, save_model
from training_parts import tiny_target, tiny_texts, write_rows

from specmesh.draft.adaptive import ContextMixture
from specmesh.draft.lookup import MatchIndex
from specmesh.draft.ngram_file import NgramTable, law_to_levels, load_table, save_table
from specmesh.training.__main__ import main
from specmesh.training.arms import ContextArm, TableArm
from specmesh.training.context import MAX_MATCH, evidence_of, fit_weights, overlap, probabilities
from specmesh.training.measure import Written, written_texts
from specmesh.training.write import Texts, save_texts

WEIGHTS = (3.0, 0.7, *[0.4] * (MAX_MATCH - 2))


def uniform_table(weights: tuple[float, ...] = ()) -> NgramTable:
    law = np.full((VOCABULARY, VOCABULARY, VOCABULARY), 1 / VOCABULARY)
    return NgramTable(law_to_levels(law)[1:], VOCABULARY, context_weights=weights)


def copying_text(temperature: float = 1.0, certainty: float = 9.0) -> Written:
    """Twelve tokens three times; the target is nearly sure of every one."""
    tokens = torch.tensor(random_ids(12, 3) * 3)
    logits = torch.zeros(24, VOCABULARY)
    logits[torch.arange(24), tokens[12:]] = certainty
    return Written(tokens, 12, logits, temperature)


def test_the_estimate_uses_the_law_that_is_drafted_from() -> None:
    table, text = uniform_table(WEIGHTS), copying_text()
    mixture = ContextMixture(table, WEIGHTS)
    evidence = evidence_of(text, table, mixture)
    index, wanted = MatchIndex(mixture.settings), []
    for place, token in enumerate(text.tokens.tolist()):
        if place >= text.first:
            wanted.append(mixture.law(index)[token])
        index.push(token)
    np.testing.assert_allclose(probabilities(evidence, WEIGHTS), wanted)
    sure = text.target_logits.softmax(-1).max(-1).values.double().numpy()
    np.testing.assert_allclose(evidence.of_target, sure, rtol=1e-5)
    assert overlap(evidence, WEIGHTS) == pytest.approx(np.minimum(1, np.array(wanted) / sure).mean(), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_table_with_a_past_follows_a_copy_that_the_table_alone_does_not(temperature: float) -> None:
    text = copying_text(temperature)
    alone = TableArm(uniform_table()).along(text)
    along = ContextArm(uniform_table((0.01,) * MAX_MATCH)).along(text)
    assert alone.overlap.mean() < 0.1
    assert along.overlap.mean() > 0.9
    assert along.kept[2, 8] > 0.8
    assert along.kept.shape == (24, 9)


def test_the_overlap_is_the_sum_of_minima_at_the_texts_temperature() -> None:
    table, text = uniform_table(WEIGHTS), copying_text(0.7, certainty=3.0)
    along = ContextArm(table).along(text)
    mixture = ContextMixture(table, WEIGHTS)
    index = MatchIndex(mixture.settings)
    for token in text.tokens.tolist()[:17]:
        index.push(token)
    drafted = np.zeros(VOCABULARY)
    for token, prob in mixture.law(index).items():
        drafted[token] = prob ** (1 / 0.7)
    target = (text.target_logits[5] / 0.7).softmax(-1).numpy()
    assert along.overlap[5] == pytest.approx(np.minimum(drafted / drafted.sum(), target).sum(), rel=1e-5)


def own_texts() -> Texts:
    """What the tiny target writes after prompts that repeat themselves, by turns at temperatures 1 and 0."""
    prompts = [[random_ids(6, row) * 2] for row in range(8)]
    parts = [write_rows(tiny_target(), prompts, length=40, temperature=t) for t in (1.0, 0.0)]
    tokens, by_target, valid = (
        np.concatenate([getattr(part, name).numpy() for part in parts]) for name in ("tokens", "by_target", "valid")
    )
    return Texts(tokens.astype(np.uint16), by_target, valid, np.zeros(16, np.int8), np.repeat([1.0, 0.0], 8))


def test_the_fit_beats_other_weights_and_reads_sampled_texts_only() -> None:
    target, texts, table = tiny_target(), own_texts(), uniform_table()
    weights, reached = fit_weights(target, table, texts, rows=np.arange(16))
    assert len(weights) == MAX_MATCH
    assert weights[2:] == weights[2:3] * (MAX_MATCH - 2)
    assert (weights, reached) == fit_weights(target, table, texts, rows=np.arange(8))
    mixture = ContextMixture(table, weights)
    parts = [evidence_of(text, table, mixture) for text in written_texts(target, texts, np.arange(8))]
    sizes = [len(part.of_target) for part in parts]
    assert reached == pytest.approx(np.average([overlap(part, weights) for part in parts], weights=sizes))
    for other in ((2.0, 0.5, *[0.6] * 6), (0.5, 0.1, *[0.15] * 6)):
        assert np.average([overlap(part, other) for part in parts], weights=sizes) < reached - 1e-4


def test_a_text_is_measured_up_to_where_the_target_stops_writing() -> None:
    """In a conversation the user's next turn follows; it is nobody's draft."""
    texts = tiny_texts(1)
    texts.by_target[0, 20:26] = False
    (text,) = written_texts(tiny_target(), texts, np.array([0]))
    assert (text.first, len(text.tokens)) == (8, 20)


def test_the_command_writes_weights_into_the_tables(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "target", tiny_target())
    save_table(tmp_path / "t.npz", uniform_table())
    save_texts(own_texts(), tmp_path / "texts.npz")
    command = ["context", "--target", str(folder), "--texts", str(tmp_path / "texts.npz"), "--device", "cpu"]
    done = CliRunner().invoke(main, [*command, "--table", str(tmp_path / "t.npz"), "--rows", "8"])
    assert done.exit_code == 0, done.output
    table = load_table(tmp_path / "t.npz")
    assert len(table.context_weights) == MAX_MATCH
    assert f"t.npz: weights {table.context_weights}" in done.output

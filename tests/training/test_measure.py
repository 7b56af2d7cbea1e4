"""Measuring: every kind of arm along a text, against what a person would compute, and which arm is the fastest."""

from pathlib import Path

import numpy as np
import pytest
import torch
from model_builders import VOCABULARY, paged_twin, random_ids
from training_parts import tiny_corpus, tiny_target, tiny_texts

from specmesh.draft.lookup import LookupSettings
from specmesh.draft.ngram_file import NgramTable, law_to_levels
from specmesh.training.arms import LookupArm, ServedArm, TableArm, TrainedArm
from specmesh.training.cost import Costs, measure_costs
from specmesh.training.distil import DraftPlan, make_drafts
from specmesh.training.evaluate import load_costs, load_figures, save_costs, save_figures
from specmesh.training.measure import Figures, Written, measure, written_texts
from specmesh.training.report import BEGIN, END, best_arms, put_between_marks, tables

CELLS = {
    domain: {t: Figures(0.5, tuple(1 + 0.1 * k for k in range(1, 9))) for t in (1.0, 0.7, 0.0)}
    for domain in ("prose", "code", "json", "copying")
}


def written(tokens: list[int], first: int, temperature: float) -> Written:
    """A text with the logits of the tiny target."""
    ids = torch.tensor(tokens)
    logits = tiny_target()(input_ids=ids[None], use_cache=False).logits[0, first - 1 : -1]
    return Written(ids, first, logits, temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_target_drafting_for_itself_overlaps_wholly(temperature: float) -> None:
    arm = ServedArm(paged_twin(tiny_target()), 64)
    along = arm.along(written(random_ids(30, 1), 5, temperature))
    np.testing.assert_allclose(along.overlap, 1, atol=1e-4)
    if temperature:
        np.testing.assert_allclose(along.kept[:10], 1, atol=1e-3)


def test_a_model_overlap_is_the_sum_of_minima_at_the_texts_temperature() -> None:
    draft = make_drafts(tiny_target(), [DraftPlan("d", ("code",), (0,), 40, 4)], tiny_texts(), tiny_corpus())["d"]
    text = written(random_ids(20, 2), 6, 0.7)
    along = TrainedArm(draft).along(text)
    with torch.inference_mode():
        drafted = (draft(text.tokens[None])[0, 9] / 0.7).softmax(-1)
    target = (text.target_logits[4] / 0.7).softmax(-1)
    wanted = sum(min(float(target[t]), float(drafted[j])) for j, t in enumerate(draft.token_ids.tolist()))
    assert along.overlap[4] == pytest.approx(wanted, abs=1e-5)
    assert along.overlap.shape == (14,)
    assert along.kept.shape == (14, 9)


def test_lookup_survives_as_far_as_the_copy_goes() -> None:
    copied = random_ids(12, 3)
    tokens = [*copied, *copied[:6], *random_ids(6, 4)]
    along = LookupArm(LookupSettings(min_match=2)).along(written(tokens, 14, 1.0))
    assert along.kept[0].tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert along.kept[3].tolist()[:3] == [1, 1, 0]


def test_a_table_with_the_targets_own_law_overlaps_wholly() -> None:
    """The law over the last token only, of a text of two tokens."""
    text = written([5, 9], 1, 1.0)
    law = np.full((VOCABULARY, VOCABULARY, VOCABULARY), 1 / VOCABULARY, dtype=np.float32).astype(np.float64)
    law[0, 5] = text.target_logits[0].double().softmax(-1).numpy()
    table = NgramTable(levels=law_to_levels(law), vocabulary_size=VOCABULARY)
    assert TableArm(table).along(text).overlap[0] == pytest.approx(1, abs=1e-6)
    assert TableArm(table).along(written([5, 9], 1, 0.0)).overlap[0] == 1


def test_only_what_the_target_wrote_counts_and_only_its_beginning() -> None:
    texts = tiny_texts(length=200)
    (text,) = written_texts(tiny_target(), texts, np.array([3]))
    assert text.first == 8
    assert len(text.tokens) == 8 + 128
    whole = tiny_target()(input_ids=text.tokens[None], use_cache=False).logits[0, 7:-1]
    torch.testing.assert_close(text.target_logits, whole)


def test_figures_cover_every_cell_that_has_texts() -> None:
    figures = measure(tiny_target(), {"self": ServedArm(paged_twin(tiny_target()), 64)}, tiny_texts(), rows_per_cell=2)
    assert figures["self"]["code"][1.0].overlap == pytest.approx(1, abs=1e-4)
    assert figures["self"]["code"].keys() == {1.0}


def test_a_row_without_room_for_an_answer_is_left_out() -> None:
    texts = tiny_texts()
    texts.by_target[1::4] = False
    figures = measure(tiny_target(), {"self": ServedArm(paged_twin(tiny_target()), 64)}, texts, rows_per_cell=2)
    assert figures["self"]["code"] == {}
    assert figures["self"]["prose"]


def test_the_best_block_length_weighs_tokens_against_cost() -> None:
    costs = Costs(1.0, (1.0,) * 9, {"dear": 0.4, "cheap": 0.0})
    assert costs.speed("cheap", (1.5, 1.75, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8)) == (pytest.approx(1.8), 8)
    assert costs.speed("dear", (1.5, 1.75, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8)) == (pytest.approx(1.5 / 1.4), 1)


def test_costs_are_told_in_target_tokens() -> None:
    ticks = iter(range(10**6))
    twin, other = paged_twin(tiny_target()), paged_twin(tiny_target())
    costs = measure_costs(twin, {"other": other}, repeats=4, clock=lambda: float(next(ticks)))
    assert costs.share("other") == 1 / 4
    assert len(costs.verify) == 9


def test_the_report_names_the_fastest_arm(tmp_path: Path) -> None:
    slower = {d: {t: Figures(0.4, tuple(1 + 0.05 * k for k in range(1, 9))) for t in c} for d, c in CELLS.items()}
    figures = {"good": CELLS, "weak": slower}
    costs = {"made up": Costs(1.0, (1.0,) * 9, {"good": 0.0, "weak": 0.0})}
    save_figures(figures, tmp_path / "figures.json")
    save_costs(costs, tmp_path / "costs.json")
    assert load_figures(tmp_path / "figures.json") == figures
    assert load_costs(tmp_path / "costs.json") == costs
    assert [name for _, _, name in best_arms(figures, costs["made up"])["json", 0.7]] == ["good", "weak"]
    document = tmp_path / "page.md"
    document.write_text(f"before {BEGIN} old {END} after")
    put_between_marks(document, tables(figures, costs))
    assert "| json | 0.7 | good |" in document.read_text()
    assert "old" not in document.read_text()
    document.write_text("no marks")
    with pytest.raises(ValueError, match="no place for the figures"):
        put_between_marks(document, "")

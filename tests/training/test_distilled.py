"""A draft's way from training to a service: int8, digests, and the same logits at the end."""

import json
from pathlib import Path

import pytest
import torch
from model_builders import random_ids, save_model
from training_parts import tiny_corpus, tiny_target, tiny_texts

from specmesh.draft.ngram_file import load_table
from specmesh.model.distilled import dequantise, find_draft, load_distilled
from specmesh.model.spans import Span
from specmesh.training.distil import DraftPlan, make_drafts
from specmesh.training.draft_model import DraftModel
from specmesh.training.pack import packed, quantise_rows, save_weights, write_package

PLAN = DraftPlan("tiny", ("code",), (0,), 40, 4)


def draft_and_folders(tmp_path: Path) -> tuple[DraftModel, Path, Path]:
    """An untrained draft with noise in its head, packed for a saved target."""
    target = tiny_target()
    draft = make_drafts(target, [PLAN], tiny_texts(), tiny_corpus())["tiny"]
    torch.manual_seed(5)
    torch.nn.init.normal_(draft.rows, std=0.1)
    save_weights(draft.weights(), tmp_path / "tiny.safetensors")
    folder = save_model(tmp_path / "target", target)
    about = {"name": "tiny", "target": "tiny", "layers": [0], "domains": ["code"], "recipe": ""}
    write_package(tmp_path / "draft", tmp_path / "tiny.safetensors", folder, about)
    return draft, tmp_path / "draft", folder


def test_rows_of_int8_are_within_half_a_step_of_their_own_scale() -> None:
    matrix = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)) * torch.logspace(-1, 2, 50)[:, None]
    quantised, scale = quantise_rows(matrix)
    assert quantised.dtype == torch.int8
    assert scale.shape == (50, 1)
    assert (quantised.abs().amax(1) == 127).all()
    assert ((quantised.float() * scale.float() - matrix).abs() <= 0.51 * scale.float() + 1e-9).all()


def test_a_row_of_zeros_stays_zero() -> None:
    quantised, scale = quantise_rows(torch.zeros(2, 8))
    assert not (quantised.float() * scale.float()).any()


def test_the_served_draft_computes_what_the_stored_one_does(tmp_path: Path) -> None:
    draft, folder, target = draft_and_folders(tmp_path)
    stored = draft.with_weights(dequantise(packed(draft.weights())))
    loaded = load_distilled(folder, target, dtype="float32")
    loaded.model.allocate_cache(4)
    tokens = random_ids(30, 1)
    with torch.inference_mode():
        wanted = stored(torch.tensor([tokens]))[0]
        served = loaded.model.forward([Span(tokens, 0, [0, 1], 0)])
    torch.testing.assert_close(served, wanted, rtol=1e-4, atol=1e-4)
    assert loaded.model.token_map is not None
    assert loaded.model.token_map.tolist() == draft.token_ids.tolist()
    assert loaded.name == "tiny"


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    _, folder, target = draft_and_folders(tmp_path)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="digest is not the one"):
        load_distilled(folder, target)


def test_another_target_is_refused(tmp_path: Path) -> None:
    _, folder, _ = draft_and_folders(tmp_path)
    other = tiny_target()
    with torch.no_grad():
        other.get_input_embeddings().weight[3, 3] += 1
    with pytest.raises(ValueError, match="another target"):
        load_distilled(folder, save_model(tmp_path / "other", other))


def test_an_unknown_draft_is_refused() -> None:
    with pytest.raises(ValueError, match="no distilled draft is called poetry"):
        find_draft("poetry")


def test_the_digest_of_the_model_names_its_number_format(tmp_path: Path) -> None:
    _, folder, target = draft_and_folders(tmp_path)
    digests = {load_distilled(folder, target, dtype=dtype).model_digest for dtype in ("float32", "bfloat16")}
    assert len(digests) == 2


@pytest.mark.parametrize("name", ["code", "prose", "general"])
def test_shipped_drafts_are_whole_and_described(name: str) -> None:
    folder = find_draft(name)
    about = json.loads((folder / "config.json").read_text())["specmesh_draft"]
    assert about["name"] == name
    assert about["target"] == "SmolLM2-135M-Instruct"
    card = (folder / "README.md").read_text()
    for heading in ("## Data", "## Recipe", "## Measured", "## Licence"):
        assert heading in card


def test_shipped_weights_take_at_most_32_megabytes() -> None:
    sizes = [(find_draft(name) / "model.safetensors").stat().st_size for name in ("code", "prose", "general")]
    assert sum(sizes) <= 32_000_000


@pytest.mark.parametrize("name", ["code", "prose"])
def test_shipped_tables_are_of_the_drafts_vocabulary(name: str) -> None:
    table = load_table(find_draft(name).parent / "tables" / f"{name}.npz")
    assert [level.length for level in table.levels] == [2, 1, 0]
    assert table.vocabulary_size == 49152
    assert table.tokenizer_digest
    assert len(table.context_weights) == 8

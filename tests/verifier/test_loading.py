"""From the configuration to a target: the size of the cache, the end of the context, what routers are told."""

from pathlib import Path
from typing import Any

import pytest
from model_builders import MAX_CONTEXT, VOCABULARY, plain_model, save_model, tiny_tokenizer
from pydantic import ByteSize, ValidationError
from verifier_parts import random_logits

from specmesh.runtime.config import ConfigError
from specmesh.runtime.contract import CONTRACT_VERSION
from specmesh.verifier.config import VerifierConfig
from specmesh.verifier.loading import MAX_BLOCKS, load
from specmesh.verifier.target import save_table

BYTES_PER_BLOCK = 128


@pytest.fixture
def table(tmp_path: Path) -> Path:
    save_table(tmp_path / "five.npz", random_logits(6), vocabulary_size=5)
    return tmp_path / "five.npz"


def config(path: Path, **settings: Any) -> VerifierConfig:
    return VerifierConfig.model_validate({"model": f"table:{path}"} | settings)


@pytest.mark.parametrize(
    ("settings", "num_blocks", "max_context_tokens"),
    [
        ({"kv_memory": 100 * BYTES_PER_BLOCK + 127}, 100, 1600),
        ({"kv_memory": "1MiB"}, 8192, 4096),
        ({"kv_memory": "1MiB", "max_context_tokens": 99}, 8192, 99),
        ({"kv_memory": "1GiB", "table": {"max_context_tokens": 50}}, MAX_BLOCKS, 50),
    ],
)
def test_the_cache_is_what_memory_holds_and_no_context_is_longer_than_it(
    table: Path, settings: dict[str, Any], num_blocks: int, max_context_tokens: int
) -> None:
    loaded = load(config(table, **settings))
    assert loaded.backend.num_blocks == num_blocks
    assert loaded.backend.max_context_tokens == loaded.info.max_context_tokens == max_context_tokens


def test_routers_are_told_what_the_table_is(table: Path) -> None:
    info = load(config(table, engine={"max_block_length": 7})).info
    assert (info.kind, info.model_name, info.vocabulary_size) == ("table", "five", 5)
    assert (info.contract_version, info.max_block_length) == (CONTRACT_VERSION, 7)
    assert load(config(table, model_name="other")).info.model_name == "other"
    assert load(config(table)).info.model_digest == info.model_digest


def test_a_pinned_model_is_served_and_no_other(table: Path) -> None:
    digest = load(config(table)).info.model_digest
    assert load(config(table, model_digest=digest)).info.model_digest == digest
    with pytest.raises(ConfigError, match=f"model_digest: pinned to {'0' * 64}, .* {digest}"):
        load(config(table, model_digest="0" * 64))
    with pytest.raises(ValidationError, match="model_digest"):
        config(table, model_digest="latest")


def test_another_table_has_another_digest(table: Path, tmp_path: Path) -> None:
    save_table(tmp_path / "second.npz", random_logits(6, seed=1))
    digests = {load(config(path)).info.model_digest for path in (table, tmp_path / "second.npz")}
    assert len(digests) == 2


def test_memory_for_no_block_is_refused_by_name(table: Path) -> None:
    with pytest.raises(ConfigError, match="kv_memory: one block of 16 tokens takes 128 bytes"):
        load(config(table, kv_memory=127))


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        ({"model": "table:five.npz", "dtype": "float32"}, "dtype"),
        ({"model": "table:five.npz", "device": "cuda"}, "device"),
        ({"model": "table:five.npz", "quantization": "nf4"}, "quantization"),
        ({"model": "table:five.npz", "tensor_parallel": 2}, "tensor_parallel"),
        ({"model": "demo", "table": {"delay_ms": 5}}, "table"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused_by_name(settings: dict[str, Any], ignored: str) -> None:
    with pytest.raises(ValidationError, match=f"{ignored}: has no meaning for model"):
        VerifierConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tensor_parallel": 2, "quantization": "nf4"}, "quantization: not together with tensor_parallel"),
        ({"tensor_parallel": 2, "device": "cuda:1"}, "device: cuda:1 with tensor_parallel, where each rank"),
        ({"tensor_parallel": 0}, "greater than or equal to 1"),
        ({"rank_timeout_seconds": 5}, "rank_timeout_seconds: has no meaning without tensor_parallel"),
    ],
)
def test_what_ranks_cannot_share_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        VerifierConfig.model_validate({"model": "demo"} | settings)


def test_a_model_is_served_with_its_tokenizer(tmp_path: Path) -> None:
    folder = save_model(tmp_path, plain_model())
    loaded = load(VerifierConfig(model=str(folder), dtype="float32", kv_memory=ByteSize(1 << 20)))
    assert (loaded.info.kind, loaded.info.vocabulary_size) == ("hf", VOCABULARY)
    assert loaded.info.max_context_tokens == MAX_CONTEXT
    assert len(loaded.info.vocabulary_hashes) == 4 * VOCABULARY
    assert len(loaded.info.model_digest) == len(loaded.info.tokenizer_digest) == 64
    assert loaded.tokenizer.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert dict(loaded.tokenizer.special_tokens) == {"bos_token": "<s>", "eos_token": "</s>"}
    assert loaded.tokenizer.eos_token_ids == (tiny_tokenizer().token_to_id("</s>"),)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "tokenizer.json"), ({"quantization": "nf4"}, "tokenizer.json")],
)
def test_a_model_that_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    plain_model().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"model: cannot serve .*{said}"):
        load(VerifierConfig.model_validate({"model": str(tmp_path)} | settings))

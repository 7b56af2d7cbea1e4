"""From the configuration to a target: the size of the cache, the end of the context, what routers are told."""

from pathlib import Path
from typing import Any

import pytest
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


def config(table: Path, **settings: Any) -> VerifierConfig:
    return VerifierConfig.model_validate({"model": f"table:{table}"} | settings)


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


def test_another_table_has_another_digest(table: Path, tmp_path: Path) -> None:
    save_table(tmp_path / "second.npz", random_logits(6, seed=1))
    digests = {load(config(path)).info.model_digest for path in (table, tmp_path / "second.npz")}
    assert len(digests) == 2


def test_memory_for_no_block_is_refused_by_name(table: Path) -> None:
    with pytest.raises(ConfigError, match="kv_memory: one block of 16 tokens takes 128 bytes"):
        load(config(table, kv_memory=127))

"""Folders that are made once, and vocabularies that are compared."""

import json
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import pytest

from specmesh.model.storage import build_once, cache_directory
from specmesh.model.vocabulary import pieces_of, vocabulary_of

BUILDER = """
import sys
from pathlib import Path
from specmesh.model.storage import build_once
def build(folder):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    for index in range(200):
        (folder / str(index)).write_text("x" * index)
print(len(list(build_once(Path(sys.argv[1]), build).iterdir())))
"""


def test_processes_that_start_together_build_once_and_see_all_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "cache" / "model"), str(tmp_path / "log")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["200"] * 3
    assert (tmp_path / "log").read_text() == "built\n"


def test_a_build_that_fails_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        build_once(target, fail)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert build_once(target, lambda folder: (folder / "whole").touch()) == target
    assert (target / "whole").exists()


def test_the_cache_is_where_the_user_says(tmp_path: Path) -> None:
    assert cache_directory({"SPECMESH_CACHE": str(tmp_path)}) == tmp_path
    assert cache_directory({}).name in ("specmesh", "cache")


def tokenizer_json(vocabulary: object, added: dict[str, int] | None = None) -> bytes:
    tokens = [{"id": token_id, "content": text} for text, token_id in (added or {}).items()]
    return json.dumps({"model": {"vocab": vocabulary}, "added_tokens": tokens}).encode()


def test_pieces_come_by_id_with_added_tokens_and_gaps() -> None:
    assert pieces_of(tokenizer_json({"b": 1, "a": 0, "é": 3}, {"<s>": 4})) == [b"a", b"b", b"", "é".encode(), b"<s>"]
    assert pieces_of(tokenizer_json([["▁x", -1.0], ["y", -2.0]])) == ["▁x".encode(), b"y"]
    with pytest.raises(ValueError, match="no vocabulary"):
        pieces_of(b"{}")


def test_the_digest_sees_swapped_ids_and_not_the_files_layout() -> None:
    """C14: ids of equal number and unequal meaning."""
    first = vocabulary_of(tokenizer_json({"a": 0, "bc": 1}))
    assert vocabulary_of(tokenizer_json([["a", 0.0], ["bc", 0.0]])) == first
    assert vocabulary_of(tokenizer_json({"a": 1, "bc": 0})).digest != first.digest
    assert vocabulary_of(tokenizer_json({"ab": 0, "c": 1})).digest != first.digest
    assert first.hashes == blake2b(b"a", digest_size=32).digest()[:4] + blake2b(b"bc", digest_size=32).digest()[:4]

"""Paged attention and cache writes in Triton equal the reference: interpreted everywhere, compiled on a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import compiled_attention
import pytest
import torch
from compiled_attention import CASES, FORMS, TOLERANCES, Case

from specmesh.model.layout import layout_of
from specmesh.model.spans import Span
from specmesh.model.tiles import can_compile, num_splits, queries_per_tile

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
MODEL_TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    """All cases in one process of its own: the interpreter must be chosen before Triton is imported."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not made for this platform")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, compiled_attention.__file__, "cpu"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_interpreted_attention_is_plain_softmax(interpreted: dict[str, Any], case: Case) -> None:
    """Ragged queries and chunks, grouped heads, sizes 64 to 256; whatever lies behind a session's end is NaN."""
    assert interpreted["errors"][case.name] <= TOLERANCES[case.dtype]


def test_interpreted_writes_go_where_the_reference_writes(interpreted: dict[str, Any]) -> None:
    assert interpreted["writes"]


def test_a_model_over_the_interpreted_kernels_is_the_model(interpreted: dict[str, Any]) -> None:
    """Launched one by one; recorded by size, padded and run again on other inputs; its own layers and fused ones."""
    assert len(interpreted["model"]) == len(FORMS)
    assert max(interpreted["model"]) <= MODEL_TOLERANCE


@pytest.mark.parametrize("case", [pytest.param(case, marks=on_gpu, id=case.name) for case in CASES])
def test_compiled_attention_is_plain_softmax(case: Case) -> None:
    assert compiled_attention.error_of(case, "cuda") <= TOLERANCES[case.dtype]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(("recorded", "fused"), FORMS)
def test_a_model_over_the_compiled_kernels_is_the_model(recorded: bool, fused: bool) -> None:
    assert compiled_attention.writes_as_the_reference("cuda")
    assert compiled_attention.model_error("cuda", recorded=recorded, fused=fused) <= MODEL_TOLERANCE


@pytest.mark.parametrize(("longest", "group", "queries"), [(1, 4, 1), (5, 4, 8), (5, 1, 8), (256, 4, 16), (9, 71, 1)])
def test_tiles_fill_a_product_and_are_no_larger(longest: int, group: int, queries: int) -> None:
    spans = [Span([0], 7, [0], 0), Span([0] * longest, 0, [0] * 16, 0)]
    assert queries_per_tile(spans, group) == queries
    tiles = layout_of(spans).tiles(queries)
    assert tiles[:, 2].sum() == 1 + longest
    assert tiles[0].tolist() == [0, 7, 1, 0]
    assert tiles[-1, 0] + tiles[-1, 2] == 1 + longest
    assert (tiles[:, 2] <= queries).all()


def test_contexts_are_cut_while_that_fills_a_gpu_and_is_worth_it() -> None:
    def splits(context: int, sessions: int) -> int:
        return num_splits([Span([0], context - 1, [], 0)] * sessions, sessions, 8)

    assert [splits(8192, 1), splits(8192, 8), splits(8192, 128), splits(512, 1), splits(100, 1)] == [32, 4, 1, 2, 1]


def test_a_cpu_takes_the_reference() -> None:
    assert not can_compile(torch.device("cpu"))

"""Fused layers equal the model's own; their kernels the torch reference: interpreted everywhere, compiled on a GPU."""

import importlib.util
import json
import logging
import os
import subprocess
import sys
from typing import Any

import compiled_layer
import pytest
import torch
from compiled_layer import DTYPES, INTERPRETED_TOLERANCES, MODELS, OPS, TOLERANCES
from model_builders import paged_twin, plain_model, tiny_config
from torch import nn
from transformers import GemmaConfig, GemmaForCausalLM

from specmesh.model.attention import ATTENTION_NAME
from specmesh.model.checks import TOLERANCE, fuse_where_equal
from specmesh.model.errors import UnsupportedModel
from specmesh.model.fused import fuse
from specmesh.model.paged import PagedModel
from specmesh.model.products import Called, Merged, product_of

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    """All cases in one process of its own: the interpreter must be chosen before Triton is imported."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not made for this platform")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, compiled_layer.__file__, "cpu"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_interpreted_ops_are_the_reference(interpreted: dict[str, Any], op: str, dtype: str) -> None:
    """Random shapes, no rows among them, parts, biases, head norms, padding."""
    assert interpreted["errors"][f"{op}-{dtype}"] <= INTERPRETED_TOLERANCES[dtype]


@pytest.mark.parametrize("config", MODELS, ids=lambda config: config.__name__)
def test_a_model_of_fused_layers_is_the_model(interpreted: dict[str, Any], config: type) -> None:
    assert interpreted["models"][config.__name__] <= TOLERANCE


@pytest.mark.parametrize("op", [pytest.param(op, marks=on_gpu) for op in OPS])
def test_compiled_ops_are_the_reference(op: str) -> None:
    for dtype, tolerance in TOLERANCES.items():
        assert compiled_layer.errors_of(op, dtype, "cuda", examples=6) <= tolerance


@pytest.mark.parametrize("config", [pytest.param(config, marks=on_gpu, id=config.__name__) for config in MODELS])
def test_a_model_of_fused_layers_is_the_model_on_a_gpu(config: type) -> None:
    assert compiled_layer.fused_error(config, "cuda") <= TOLERANCE


@pytest.mark.parametrize("bias", [False, True])
def test_merged_products_hold_the_weights_once(bias: bool) -> None:
    linears = [nn.Linear(8, size, bias=bias) for size in (6, 2, 4)]
    rows = torch.randn(3, 8)
    with torch.inference_mode():
        wanted = torch.cat([linear(rows) for linear in linears], -1)
        product = product_of(linears)
        assert isinstance(product, Merged)
        torch.testing.assert_close(product(rows), wanted[None])
        torch.testing.assert_close(torch.cat([linear(rows) for linear in linears], -1), wanted)
    assert {linear.weight.untyped_storage().data_ptr() for linear in linears} == {product.weight.data_ptr()}


def test_layers_that_are_not_plain_are_called() -> None:
    class Quantised(nn.Linear):
        pass

    rows = torch.randn(3, 8)
    linears = [nn.Linear(8, 4), Quantised(8, 6)]
    product = product_of(linears)
    assert isinstance(product, Called)
    torch.testing.assert_close(product(rows)[0], torch.cat([linear(rows) for linear in linears], -1))
    hooked = nn.Linear(8, 4)
    hooked.register_forward_hook(lambda module, inputs, output: output + 1)
    assert isinstance(product_of([hooked]), Called)


def gemma() -> PagedModel:
    config = GemmaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64,
    )  # fmt: skip
    config._attn_implementation = ATTENTION_NAME
    return PagedModel(GemmaForCausalLM(config), device="cpu", dtype=torch.float32, vocabulary_size=50)


def test_a_model_without_a_fused_form_keeps_its_layers_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = gemma()
    with caplog.at_level(logging.WARNING):
        assert not fuse_where_equal(model)
    assert "no fused form of GemmaDecoderLayer" in caplog.text
    with pytest.raises(UnsupportedModel, match="GemmaDecoderLayer"):
        fuse(model.module)


def test_a_form_that_would_differ_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    """Another activation under a known class of layers."""
    model = paged_twin(plain_model(tiny_config(hidden_act="gelu")))
    with caplog.at_level(logging.WARNING):
        assert not fuse_where_equal(model)
    assert "gelu" in caplog.text

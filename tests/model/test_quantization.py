"""Weights in 4 and 8 bits: the model that is served is the one that its own stored weights make."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bitsandbytes
import pytest
import torch
from bitsandbytes import functional
from model_builders import VOCABULARY, plain_logits, plain_model, random_ids, save_model, tiny_config
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from specmesh.model.errors import UnsupportedModel
from specmesh.model.loading import load_model
from specmesh.model.paged import Span
from specmesh.model.quantization import check_quantization, check_quantized, quantized_dtype

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", plain_model(tiny_config(**SIZES)))


def rounded(quantization: str, dtype: torch.dtype) -> LlamaForCausalLM:
    """A plain float32 model whose linear layers hold the nearest weights that `quantization` can store."""
    plain = plain_model(tiny_config(**SIZES))
    for layer in plain.model.layers.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(_rounded(layer.weight.to(dtype), quantization))
    return plain


def _rounded(weight: Tensor, quantization: str) -> Tensor:
    if quantization == "nf4":
        stored: Tensor = functional.dequantize_4bit(*functional.quantize_4bit(weight, quant_type="nf4"))
        return stored.float()
    scale = weight.float().abs().amax(dim=1, keepdim=True) / 127
    return (weight.float() / scale).round() * scale


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("quantization", "tolerance"), [("nf4", 0.03), ("int8", 0.04)])
def test_a_quantised_model_is_that_of_its_stored_weights(
    folder: Path, quantization: str, tolerance: float, device: str
) -> None:
    """In bfloat16; by root mean square, in which the same model without quantisation is 0.01 off."""
    model = load_model(folder, dtype="bfloat16", device=device, quantization=quantization).model
    model.allocate_cache(2)
    ids = random_ids(20, seed=1)
    found = model.forward([Span(ids, 0, [0, 1], 0)]).float().cpu()
    wanted = plain_logits(rounded(quantization, torch.bfloat16), ids)
    assert float((found - wanted).norm() / wanted.norm()) < tolerance
    assert found.shape == (20, VOCABULARY)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_recorded_forwards_of_a_quantised_model_are_those_launched_one_by_one(folder: Path, quantization: str) -> None:
    model = load_model(folder, dtype="bfloat16", device="cuda", quantization=quantization).model
    model.allocate_cache(4)
    spans = [Span(random_ids(6, seed=2), 0, [0], 0), Span(random_ids(3, seed=3), 0, [1], 0)]
    wanted = model.forward(spans).float()
    model.warm_up(16)
    torch.testing.assert_close(model.forward(spans).float(), wanted, atol=0.05 * float(wanted.abs().max()), rtol=0)


def test_the_digest_tells_quantisations_apart(folder: Path) -> None:
    digests = {load_model(folder, dtype="bfloat16", quantization=each).model_digest for each in (None, "nf4", "int8")}
    assert len(digests) == 3


def test_the_log_says_what_was_compared(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "specmesh.model.quantization"):
        load_model(folder, dtype="bfloat16", quantization="nf4")
    [line] = [record.message for record in caplog.records if record.name == "specmesh.model.quantization"]
    assert line.startswith("nf4: 14 layers of 4 shapes equal the float32 products of their own weights")


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"hidden_size": 48, "num_attention_heads": 6}, "inputs, and nf4 needs a multiple of 64"),
        ({"intermediate_size": 80}, "nf4"),
    ],
)
def test_shapes_that_nf4_cannot_hold_are_refused_by_the_layers_name(
    tmp_path: Path, sizes: dict[str, int], reason: str
) -> None:
    other = save_model(tmp_path / "odd", plain_model(tiny_config(**(SIZES | sizes))))
    with pytest.raises(UnsupportedModel, match=rf"^model\.layers\.0\.\S+ has \d+ (in|out)puts, and.*{reason[-2:]}"):
        load_model(other, dtype="bfloat16", quantization="nf4")


def test_a_layer_that_multiplies_by_other_weights_is_found(folder: Path) -> None:
    module = load_model(folder, dtype="bfloat16", quantization="nf4").model.module
    fresh = bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    fresh.weight = bitsandbytes.nn.Params4bit(torch.randn(64, 64), requires_grad=False, quant_type="nf4").to("cpu")
    fresh.register_forward_hook(lambda module, args, output: output * 1.1)
    module.model.layers[0].self_attn.q_proj = fresh
    for layer in module.model.layers[1:]:
        layer.self_attn.q_proj = nn.Identity()
        layer.self_attn.o_proj = nn.Identity()
    module.model.layers[0].self_attn.o_proj = nn.Identity()
    with pytest.raises(UnsupportedModel, match=r"q_proj differs by 1\.\de-01 from the product of its own nf4"):
        check_quantized(_unlaid(module), "nf4", torch.bfloat16)


def _unlaid(module: nn.Module) -> nn.Module:
    """Without the layers whose weights a first product has laid out for the CPU."""
    for layer in module.model.layers:
        layer.mlp = nn.Identity()
        layer.self_attn.k_proj = layer.self_attn.v_proj = nn.Identity()
    return module


def test_an_unknown_quantisation_is_refused_by_name() -> None:
    check_quantization(None)
    check_quantization("int8")
    with pytest.raises(ValueError, match="quantization: int2 is not one of nf4, int8"):
        check_quantization("int2")


def test_float32_is_not_promised_beside_quantised_weights() -> None:
    assert quantized_dtype("int8", torch.float32, "auto") is torch.bfloat16
    assert quantized_dtype(None, torch.float32, "float32") is torch.float32
    with pytest.raises(ValueError, match="dtype: float32 cannot be kept with quantization nf4"):
        quantized_dtype("nf4", torch.float32, "float32")


def test_without_bitsandbytes_the_error_names_what_to_install(folder: Path, tmp_path: Path) -> None:
    """In an interpreter that has every package but that one."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in map(Path, filter(None, sys.path)):
        for each in path.iterdir() if path.name == "site-packages" else ():
            if not each.name.startswith("bitsandbytes") and not (packages / each.name).exists():
                (packages / each.name).symlink_to(each)
    roots = [path for path in sys.path if "site-packages" not in path]
    code = f"from specmesh.model.loading import load_model; load_model({str(folder)!r}, quantization='nf4')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*roots, str(packages)])}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "ValueError: quantization: nf4 needs bitsandbytes (pip install 'specmesh[gpu]')" in done.stderr

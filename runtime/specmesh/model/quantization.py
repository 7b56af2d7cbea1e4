"""Weights in 4 or 8 bits by bitsandbytes: what it is told, and what is proved of its layers before they serve."""

import importlib.util
import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from specmesh.model.errors import UnsupportedModel

QUANTIZATIONS = ("nf4", "int8")
NF4_BLOCK = 64
"""Weights of a row that share a scale."""
NF4_CPU_COLUMNS = 32
"""Outputs that bitsandbytes' kernel for a CPU computes at once; it has no other."""
TOLERANCE = {"nf4": 0.02, "int8": 0.03}
"""Of the largest product. NF4 rounds its scales and sums to bfloat16; int8 rounds the inputs to 8 bits as well, which
costs up to 1/254 of the largest input for every weight."""
CHECKED_ROWS = (1, 5, 17)

logger = logging.getLogger(__name__)


def check_quantization(name: str | None) -> None:
    """Raises ValueError for an unknown name and where bitsandbytes is not installed."""
    if name is None:
        return
    if name not in QUANTIZATIONS:
        raise ValueError(f"quantization: {name} is not one of {', '.join(QUANTIZATIONS)}")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError(f"quantization: {name} needs bitsandbytes (pip install 'specmesh[gpu]')")


def quantization_config(name: str, dtype: torch.dtype) -> BitsAndBytesConfig:
    """For transformers; `name` has been checked."""
    # It says at every product that int8 rounds its inputs, which is what int8 is.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    make: Any = BitsAndBytesConfig  # untyped
    if name == "nf4":
        options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": dtype}
    else:  # outlier columns would be found by a copy to the host in every layer
        options = {"load_in_8bit": True, "llm_int8_threshold": 0.0}
    quantizer: BitsAndBytesConfig = make(**options)
    return quantizer


def quantized_dtype(name: str | None, dtype: torch.dtype, asked: str) -> torch.dtype:
    """The dtype beside quantised weights. `asked`: as configured. Raises ValueError for one that they cannot keep."""
    if name is None or dtype != torch.float32:
        return dtype
    if asked == "auto":
        return torch.bfloat16
    raise ValueError(f"dtype: {asked} cannot be kept with quantization {name}, whose products have 16 bits at most")


@torch.inference_mode()
def check_quantized(module: PreTrainedModel, name: str, dtype: torch.dtype) -> None:
    """Raises `UnsupportedModel` unless every kind of quantised layer multiplies by the weights that it stores.

    One layer of each shape, over 1, 5 and 17 random rows, against the float32 product of its own weights turned back.
    What quantisation itself costs is not looked at: the quantised model is the target.
    """
    layers = _quantized_layers(module)
    if not layers:
        raise UnsupportedModel(f"quantization {name} found no linear layer to quantise in it")
    for path, layer in layers.items():
        _check_shape(path, layer, name)
    kinds = {(layer.in_features, layer.out_features): (path, layer) for path, layer in layers.items()}
    worst = 0.0
    for path, layer in kinds.values():
        error = _error(layer, name, dtype)
        worst = max(worst, error)
        if not error <= TOLERANCE[name]:
            raise UnsupportedModel(f"{path} differs by {error:.1e} from the product of its own {name} weights")
    logger.info(
        f"{name}: {len(layers)} layers of {len(kinds)} shapes equal the float32 products of their own weights turned "
        f"back to within {worst:.1e} of the largest; the model's attention was compared in float32, not quantised"
    )


def _quantized_layers(module: PreTrainedModel) -> dict[str, Any]:
    from bitsandbytes.nn.modules import Linear4bit, Linear8bitLt

    return {path: each for path, each in module.named_modules() if isinstance(each, (Linear4bit, Linear8bitLt))}


def _check_shape(path: str, layer: Any, name: str) -> None:  # noqa: ANN401  untyped
    """Without this bitsandbytes fails, or reads another row's scale, at the first product."""
    if name != "nf4":
        return
    if layer.in_features % NF4_BLOCK:
        raise UnsupportedModel(f"{path} has {layer.in_features} inputs, and nf4 needs a multiple of {NF4_BLOCK}")
    if layer.weight.device.type == "cpu" and layer.out_features % NF4_CPU_COLUMNS:
        columns = f"{layer.out_features} outputs, and nf4 on a CPU needs a multiple of {NF4_CPU_COLUMNS}"
        raise UnsupportedModel(f"{path} has {columns}")


def _error(layer: Any, name: str, dtype: torch.dtype) -> float:  # noqa: ANN401  untyped
    """The largest difference over the largest product."""
    weight = _turned_back(layer, name)  # first: the first product may lay the weights out anew
    bias = None if layer.bias is None else layer.bias.float()
    generator = torch.Generator().manual_seed(3)
    errors = []
    for count in CHECKED_ROWS:
        rows = torch.randn(count, layer.in_features, generator=generator).to(weight.device, dtype)
        want = nn.functional.linear(rows.float(), weight, bias)
        got = layer(rows).float()
        errors.append(float((got - want).abs().max() / want.abs().max()))
    return max(errors)


def _turned_back(layer: Any, name: str) -> Tensor:  # noqa: ANN401  untyped
    """The stored weights [out, in] as float32."""
    import bitsandbytes.functional

    if name == "nf4":
        weight: Tensor = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        return weight.float()
    scaled: Tensor = layer.weight.CB.float() * layer.weight.SCB.float()[:, None] / 127
    return scaled

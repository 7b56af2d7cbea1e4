"""What runs between a layer's products, and products of few rows, in Triton against the torch reference, on one device.

`python tests/compiled_layer.py cpu` runs all cases there and prints their errors as JSON; under Triton's interpreter,
which must be chosen before Triton is imported, so in a process of its own.
"""

import json
import sys

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from specmesh.kernels.reference import layer as reference

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
TOLERANCES = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}
"""Of the largest number: the order of sums, and roundings of the type."""
INTERPRETED_TOLERANCES = TOLERANCES | {"bfloat16": 4e-2}
"""The interpreter cuts bfloat16 off instead of rounding it, in each of several steps."""
MODELS = (LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config)
"""One of each class of layers: biases, head norms."""
OPS = ("add_norm", "silu_gated", "rotary_write", "product")
SIZES = st.sampled_from([16, 24, 48, 80, 160])


def error_between(found: Tensor, wanted: Tensor) -> float:
    """Largest difference over the largest number; NaN stays NaN."""
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    if not wanted.numel():
        return 0.0
    return float((found.float() - wanted.float()).abs().max() / wanted.float().abs().max().clamp(min=1.0))


class Draw:
    """Random tensors of one dtype on one device."""

    def __init__(self, data: st.DataObject, device: str, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31), "seed"))
        self.device, self.dtype = device, dtype

    def __call__(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*size, generator=self.generator).to(self.device, dtype or self.dtype)

    def parts(self, count: int, *size: int) -> Tensor:
        """As `product` gives them: one of the rows' dtype, several in float32."""
        return self(count, *size, dtype=None if count == 1 else torch.float32)


def add_norm_error(data: st.DataObject, draw: Draw) -> float:
    from specmesh.kernels.compiled.add_norm import add_norm

    rows, size, parts = data.draw(st.tuples(st.integers(0, 5), SIZES, st.integers(0, 4)))
    given_parts = draw.parts(parts, rows, size) if parts else None
    arguments = (given_parts, draw(rows, size), draw(size), 1e-6)
    return max(map(error_between, add_norm(*arguments), reference.add_norm(*arguments)))


def silu_gated_error(data: st.DataObject, draw: Draw) -> float:
    from specmesh.kernels.compiled.gated import silu_gated

    rows, size, parts = data.draw(st.tuples(st.integers(0, 5), st.integers(1, 700), st.integers(1, 4)))
    given_parts = draw.parts(parts, rows, 2 * size)
    return error_between(silu_gated(given_parts, draw.dtype), reference.silu_gated(given_parts, draw.dtype))


def rotary_write_error(data: st.DataObject, draw: Draw) -> float:
    from specmesh.kernels.compiled.rotary_write import rotary_write

    rows, size, parts = data.draw(st.tuples(st.integers(0, 4), st.sampled_from([16, 24, 64, 80]), st.integers(1, 3)))
    kv_heads, group = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 5)))
    rotated = data.draw(st.sampled_from([size, size // 2]))
    norms = (draw(size), draw(size), 1e-6) if data.draw(st.booleans(), "head norms") else None
    angles = torch.randn(rows, rotated // 2, generator=draw.generator).repeat(1, 2)
    cosine, sine = angles.cos().to(draw.device, draw.dtype), angles.sin().to(draw.device, draw.dtype)
    slots = torch.randperm(48, generator=draw.generator)[:rows].to(draw.device)
    slots[data.draw(st.integers(0, rows)) :] = -1
    given_parts = draw.parts(parts, rows, (group + 2) * kv_heads * size)
    caches = [
        tuple(torch.zeros(3, 16, kv_heads, size, device=draw.device, dtype=draw.dtype) for _ in "kv") for _ in range(2)
    ]
    found, wanted = (
        (op(given_parts, cosine, sine, slots, cache, norms), *cache)
        for op, cache in zip((rotary_write, reference.rotary_write), caches, strict=True)
    )
    return max(map(error_between, found, wanted))


def product_error(data: st.DataObject, draw: Draw) -> float:
    from specmesh.kernels.compiled.product import Cut, product

    rows, columns, turns = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 150), st.integers(1, 9)))
    cut = Cut(columns=data.draw(st.sampled_from([32, 64])), inner=32, parts=data.draw(st.integers(1, 6)), stages=2)
    bias = draw(columns) if data.draw(st.booleans(), "bias") else None
    inputs = (draw(rows, 32 * turns), draw(columns, 32 * turns), bias)
    found, wanted = product(*inputs, cut), reference.product(*inputs)
    return error_between(reference.joined(found, draw.dtype), wanted[0])


def errors_of(op: str, dtype: str, device: str, examples: int = 8) -> float:
    """The largest error over random shapes."""
    errors = [0.0]

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        errors.append(globals()[f"{op}_error"](data, Draw(data, device, DTYPES[dtype])))

    run()
    return max(errors, key=lambda error: (error != error, error))


def fused_error(config: type[PretrainedConfig], device: str) -> float:
    """Of the logits of a small model with fused layers against transformers' own, on a CPU."""
    from specmesh.model.checks import fused_difference

    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 96}
    options = {"num_hidden_layers": 1, "vocab_size": 90, "head_dim": 16, "sliding_window": None}
    return fused_difference(config(**sizes, **options), torch.device(device))


def main(device: str) -> None:
    errors = {f"{op}-{dtype}": errors_of(op, dtype, device) for op in OPS for dtype in DTYPES}
    models = {config.__name__: fused_error(config, device) for config in MODELS}
    json.dump({"errors": errors, "models": models}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])

"""Linear layers of few rows on a GPU: those that read the same rows as one product, cut so that the memory is busy."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from specmesh.kernels.reference import layer as reference

Product = Callable[[Tensor], Tensor]
"""From rows [N, I] to parts [S, N, C], whose sum the product is."""


def product_of(linears: Sequence[nn.Linear]) -> Product:
    """Their outputs side by side; plain ones share one weight matrix from now on, of which they hold views."""
    plain = all(type(linear) is nn.Linear and not _is_watched(linear) for linear in linears)
    biased = {linear.bias is not None for linear in linears}
    return Merged(linears) if plain and len(biased) == 1 else Called(linears)


def _is_watched(module: nn.Module) -> bool:
    """Whether somebody (a device map, a sharding plan) does something of its own where the module is called."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


class Called:
    """Products of layers that are not plain (quantised, sharded): each is called."""

    def __init__(self, linears: Sequence[nn.Module]) -> None:
        self._linears = linears

    def __call__(self, rows: Tensor) -> Tensor:
        """Parts [1, N, C]."""
        outputs = [linear(rows) for linear in self._linears]
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1))[None]


class Merged:
    """Products of plain layers as one."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self.weight = _joined([linear.weight for linear in linears])
        biases = [linear.bias for linear in linears if linear.bias is not None]
        self.bias = _joined(biases) if biases else None

    def __call__(self, rows: Tensor) -> Tensor:
        """Parts [S, N, C]."""
        return few_rows_product(rows, self.weight, self.bias)


def few_rows_product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """By the kernel for few rows where that is the quicker, else by the library: parts [S, N, C]."""
    if rows.device.type == "cuda" and len(rows):
        from specmesh.kernels.compiled.product import cut_of, product

        if (cut := cut_of(rows, weight)) is not None:
            result: Tensor = product(rows, weight, bias, cut)
            return result
    return reference.product(rows, weight, bias)


class FewRowsLinear(nn.Module):
    """`nn.Linear` with that product, for the output head."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """[..., I] to [..., C]."""
        flat = rows.reshape(-1, rows.shape[-1])
        parts = few_rows_product(flat, self.weight, self.bias)
        return reference.joined(parts, rows.dtype).view(*rows.shape[:-1], self.weight.shape[0])


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """One tensor after the other along the first axis; the parameters become views of it, so nothing is held twice."""
    if len(parameters) == 1:
        return parameters[0].data
    joined = torch.cat([parameter.data for parameter in parameters])
    for parameter, view in zip(parameters, joined.split([parameter.shape[0] for parameter in parameters]), strict=True):
        parameter.data = view
    return joined

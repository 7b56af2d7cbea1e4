"""Linear layers with their weights laid out for the CPU once, instead of at every call.

oneDNN reads a plain weight matrix at about half the speed of one in its own layout (two cores, bfloat16, 1 to 16
rows), and a forward of few tokens does little else than read weights.
"""

import torch
from torch import Tensor, nn

PACKED_ROWS = 16
"""Rows the layout is chosen for; other numbers of rows work with it."""


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this build and machine have packed products of that type."""
    if device.type != "cpu" or not torch._C._has_mkldnn or not hasattr(torch.ops, "mkldnn"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on the CPU: [..., in_features] to [..., out_features]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACKED_ROWS)

    def forward(self, rows: Tensor) -> Tensor:
        """The product; no rows give no rows."""
        if rows.numel() == 0:
            return rows.new_empty(*rows.shape[:-1], self.out_features)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        return result


def pack_linears(module: nn.Module) -> None:
    """Replace every plain `nn.Linear` under `module`, in place.

    Subclasses (quantised layers) stay as they are, and so do layers of which other ranks hold a part.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and type(child.weight) is nn.Parameter:
                setattr(parent, name, PackedLinear(child))

"""Where a test runs: always on the CPU, and on a GPU where there is one."""

import pytest
import torch

ON_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
)
CPU_AND_GPU = ("cpu", pytest.param("cuda", marks=ON_GPU))

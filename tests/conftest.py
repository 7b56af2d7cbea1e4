"""What must be so before any test module is imported."""

import os

import torch

if not torch.cuda.is_available():
    # Compiled kernels run on the CPU, in Triton's interpreter. Triton looks at this when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

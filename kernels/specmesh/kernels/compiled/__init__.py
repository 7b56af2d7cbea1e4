"""The ops in Triton, for CUDA: the same decisions as `specmesh.kernels.reference`. Importing this needs Triton."""

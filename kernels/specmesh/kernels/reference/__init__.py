"""The specification of every kernel in plain torch; `specmesh.kernels.ops` chooses between it and a compiled form."""

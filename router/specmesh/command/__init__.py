"""What the `specmesh` command does; `specmesh.cli` is its entry. Nothing here imports torch."""

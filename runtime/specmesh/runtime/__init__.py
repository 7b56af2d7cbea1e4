"""What every process of the mesh needs; never imports torch."""

"""What both model services need: loading, the paged forward, cache blocks."""

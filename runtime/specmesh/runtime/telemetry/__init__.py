"""What a service tells of itself."""

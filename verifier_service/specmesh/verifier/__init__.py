"""The verifier service: holds the target and its cache, accepts or rejects."""

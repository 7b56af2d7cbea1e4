"""Arithmetic of block lengths."""


def expected_tokens(acceptance: float, block_length: int) -> float:
    """Tokens a step emits on average when each drafted token is kept with `acceptance`, independently of the others.

    1 + a + a^2 + ... + a^k (arXiv 2211.17192, equation 1, without its division by zero at a = 1). Real acceptances are
    correlated within a session, and then this overstates long blocks. Raises ValueError outside [0, 1] or below 0.
    """
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance must lie in [0, 1], got {acceptance}")
    if block_length < 0:
        raise ValueError(f"block length must be >= 0, got {block_length}")
    return sum(acceptance**kept for kept in range(block_length + 1))

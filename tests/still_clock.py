"""Time that stands still until a test moves it."""


class StillClock:
    """Seconds, for whatever takes a clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds

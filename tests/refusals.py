"""What the chart says of values that it refuses."""

from collections.abc import Sequence
from typing import Any

import pytest
from helm_charts import Refused, render


def faults(given: dict[str, Any], **options: Any) -> list[str]:
    """Every fault that the chart says of these values."""
    with pytest.raises(Refused) as caught:
        render(given, **options)
    text = str(caught.value)
    assert "(specmesh/templates/values/checks.yaml:" in text, text
    return [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]


def assert_said(said: Sequence[str], expected: Sequence[str]) -> None:
    """Each line begins as expected, in this order, and nothing else is said."""
    assert len(said) == len(expected)
    for line, start in zip(said, expected, strict=True):
        assert line.startswith(start)

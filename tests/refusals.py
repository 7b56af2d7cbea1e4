"""What the chart says of values that it refuses."""

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

"""Small cases go through the reference and the kernel alike."""

import pytest
from compiled_verify import ALIKE


@pytest.fixture(autouse=True)
def _compare_in_every_test() -> None:
    ALIKE.begin()

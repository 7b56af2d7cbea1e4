"""Models that are pinned: what was loaded is what was meant, or nothing is served."""

import logging
from typing import Annotated

from pydantic import Field

from specmesh.runtime.config import ConfigError

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal of a model's weights, configuration, dtype, quantisation and tokenizer, as `GetInfo` says."""

_log = logging.getLogger(__name__)


def check_pinned(expected: str | None, actual: str) -> None:
    """Say which model was loaded, so that it can be pinned. Raises `ConfigError` when another one is."""
    _log.info("model loaded", extra={"model_digest": actual, "pinned": expected is not None})
    if expected is not None and expected != actual:
        raise ConfigError(f"model_digest: pinned to {expected}, but the model that was loaded has {actual}")

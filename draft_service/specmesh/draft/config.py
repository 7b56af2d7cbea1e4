"""Configuration of a draft service."""

from typing import Any

from pydantic import Field

from specmesh.draft.admission import EngineLimits
from specmesh.draft.engine import Stopping
from specmesh.runtime.config import ConfigModel, LogConfig, ServerConfig
from specmesh.runtime.pinning import Digest
from specmesh.runtime.telemetry.config import TelemetryConfig


class DraftConfig(ConfigModel):
    """`kind` picks the module that drafts; the section `drafter` holds what that kind can be told."""

    kind: str = "lookup"
    drafter: dict[str, Any] = Field(default_factory=dict)
    model_digest: Digest | None = None
    """Refuse to serve any other model than the one of this digest."""
    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    limits: EngineLimits = EngineLimits()
    stopping: Stopping = Stopping()

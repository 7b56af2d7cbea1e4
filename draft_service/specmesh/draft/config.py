"""Configuration of a draft service."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field, field_validator

from specmesh.draft.admission import EngineLimits
from specmesh.draft.drafter import FOR_TESTS, KINDS
from specmesh.draft.engine import Stopping
from specmesh.draft.settings import settings_faults
from specmesh.runtime.config import ConfigModel, LogConfig, ServerConfig
from specmesh.runtime.given import Fault
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

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in KINDS | FOR_TESTS:
            raise ValueError(f"unknown kind of draft, must be one of {', '.join(sorted(KINDS))}")
        return kind

    def faults(self) -> Iterator[tuple[str, Fault]]:
        """Of the section `drafter`."""
        for key, fault in settings_faults(self.kind, self.drafter):
            yield f"drafter.{key}" if key else "drafter", fault

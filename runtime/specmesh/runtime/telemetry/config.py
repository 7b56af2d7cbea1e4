"""What a service can be told of telemetry. With neither an endpoint nor a port nothing is recorded."""

from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator

from specmesh.runtime.address import Host
from specmesh.runtime.config import ConfigModel
from specmesh.runtime.given import KeyFault

_ENDPOINT = r"^(https?://)?(\[[0-9a-fA-F:.]+\]|[^/\s:\[\]]+):\d+/?$"


class TelemetryConfig(ConfigModel):
    """Section `telemetry` of every service."""

    otlp_endpoint: Annotated[str, Field(pattern=_ENDPOINT)] | None = None
    """Where spans and metrics go by OTLP over gRPC: `http://collector:4317`, or `https://` for TLS."""
    otlp_headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Metadata of every export, for collectors that want a key."""
    prometheus_host: Host = "0.0.0.0"
    prometheus_port: int | None = Field(default=None, ge=0, le=65535)
    """Metrics for Prometheus on this port; 0 lets the system choose, and the log says which it was."""
    sample_ratio: float = Field(default=0.01, ge=0, le=1)
    """Share of requests that are traced when their caller has not decided; a caller's own decision holds."""
    metrics_seconds: float = Field(default=15.0, gt=0)
    """Interval at which metrics are sent by OTLP."""
    spans_seconds: float = Field(default=1.0, gt=0)
    """Interval at which spans are sent."""
    max_spans: int = Field(default=8192, ge=1)
    """Spans that wait for a collector; beyond them they are dropped, and counted."""

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self.otlp_endpoint is not None or self.prometheus_port is not None

    @model_validator(mode="after")
    def _headers_have_a_receiver(self) -> Self:
        if self.otlp_headers and self.otlp_endpoint is None:
            raise KeyFault("otlp_headers", "has no meaning without otlp_endpoint")
        return self

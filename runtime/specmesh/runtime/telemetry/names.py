"""Names of what is measured. One table: whatever exports, shows or scales by a metric takes its name from here."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """`unit` as in UCUM; what is counted stands in braces, as OpenTelemetry has it."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    meaning: str

    @property
    def prometheus(self) -> str:
        """The name under which an OpenTelemetry exporter shows it to Prometheus; units in braces leave no trace."""
        if not self.unit.startswith("{"):
            raise ValueError(f"{self.name}: the unit {self.unit} would be a part of its name")
        return self.name.replace(".", "_") + ("_total" if self.kind == "counter" else "")


ARM_DEMAND = Metric(
    "specmesh.arm.demand",
    "counter",
    "{step}",
    "Steps that would have chosen the arm at its unloaded latency; counted by the router, also without a replica",
)
VERIFIER_QUEUE = Metric(
    "specmesh.verifier.queue",
    "gauge",
    "{session}",
    "Sessions of a verifier that wait for cache memory or for their turn in a tick",
)
METRICS = (ARM_DEMAND, VERIFIER_QUEUE)

POOL = "specmesh.pool"
"""Attribute: the draft pool that a figure is about."""


def prometheus_label(attribute: str) -> str:
    """An attribute as a label of Prometheus."""
    return attribute.replace(".", "_")

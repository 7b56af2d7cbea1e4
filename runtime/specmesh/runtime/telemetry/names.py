"""Names of what is measured. One table: whatever exports, shows, alerts or scales by a metric takes its name from here.

RPC and GenAI names are those of OpenTelemetry's semantic conventions; all others begin with `specmesh.`.
"""

from dataclasses import dataclass
from typing import Literal

_UNITS = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}


@dataclass(frozen=True, slots=True)
class Metric:
    """`unit` as in UCUM; what is counted stands in braces, as OpenTelemetry has it.

    `attributes` are what its series differ by, in the order in which they are recorded; `buckets` are the upper bounds
    of a histogram.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name under which Prometheus knows it; units in braces leave no trace, others are spelled out."""
        if not self.unit.startswith("{") and self.unit not in _UNITS:
            raise ValueError(f"{self.name}: no name for the unit {self.unit}")
        return self.name.replace(".", "_") + _UNITS.get(self.unit, "") + ("_total" if self.kind == "counter" else "")

    @property
    def query(self) -> str:
        """What to ask Prometheus to see it: a rate, a value, or the 95th percentile, by its attributes."""
        labels = [prometheus_label(attribute) for attribute in self.attributes]
        if self.kind == "histogram":
            by = ", ".join(["le", *labels])
            return f"histogram_quantile(0.95, sum by ({by}) (rate({self.prometheus}_bucket[5m])))"
        value = f"rate({self.prometheus}[5m])" if self.kind == "counter" else self.prometheus
        return f"sum by ({', '.join(labels)}) ({value})" if labels else f"sum({value})"


def prometheus_label(attribute: str) -> str:
    """An attribute as a label of Prometheus."""
    return attribute.replace(".", "_")


# Attributes of metrics and spans.
POOL = "specmesh.pool"
"""A draft pool, or `verifier`; empty for plain decoding."""
ARM = "specmesh.arm"
"""`pool@digest`, the digest shortened to 8 characters."""
PART = "specmesh.part"
"""Where time went: total, draft, network, queue, forward, verify, router, compute."""
POSITION = "specmesh.position"
"""Place in a block, from 1; the last one stands for all after it too."""
REASON = "specmesh.reason"
"""Why: a value of the enum that the metric names."""
STATE = "specmesh.state"
"""Of a replica (ready, cooling, ...) or of a cache block (used, free)."""
SOURCE = "specmesh.context_source"
"""Where a draft's context came from: cold, warm, predicted."""
EVENT = "specmesh.event"
SIGNAL = "specmesh.signal"
"""traces or metrics."""
TENANT = "specmesh.tenant"
"""The caller if it is on the list of `telemetry.tenants`, else `other`."""
GROUP = "specmesh.session.group"
"""speculating or held_out, of sessions that leave drafts to the policy."""
DIGEST = "specmesh.model.digest"
KIND = "specmesh.kind"
TOKEN_TYPE = "gen_ai.token.type"
"""input, cached_input or output."""
OPERATION = "gen_ai.operation.name"
MODEL = "gen_ai.request.model"
ERROR_TYPE = "error.type"
RPC_SYSTEM = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_STATUS = "rpc.response.status_code"

SHORT_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""From a table model's step to the longest that anybody waits for one."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# These three as the conventions say.
FIRST_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
REQUEST_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
CALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

# Router.
STEP_DURATION = Metric(
    "specmesh.step.duration", "histogram", "s", "Time of a step, by part; the parts add up to the total",
    (PART,), SHORT_SECONDS,
)  # fmt: skip
STEPS = Metric(
    "specmesh.steps",
    "counter",
    "{step}",
    "Steps by the arm that was asked for a block; an arm's share of them",
    (POOL, ARM),
)
FALLBACKS = Metric(
    "specmesh.fallbacks",
    "counter",
    "{step}",
    "Steps that went without a draft in the end (`FallbackReason`)",
    (REASON,),
)
DRAFTED = Metric(
    "specmesh.drafted", "counter", "{token}", "Tokens verified, by their place in the block", (POOL, POSITION)
)
ACCEPTED = Metric(
    "specmesh.accepted",
    "counter",
    "{token}",
    "Drafted tokens that were kept, by their place in the block",
    (POOL, POSITION),
)
EMITTED = Metric("specmesh.emitted", "counter", "{token}", "Tokens that steps added to texts, by arm", (POOL, ARM))
REFUSALS = Metric(
    "specmesh.block.refusals", "counter", "{block}",
    "Blocks that the verifier refused (`BlockRefusal`); resample_mismatch is a draft that lies", (POOL, REASON),
)  # fmt: skip
ARM_STATE = Metric("specmesh.arm.state", "gauge", "{replica}", "Replicas of an arm by state", (POOL, ARM, STATE))
ARM_ACCEPTANCE = Metric(
    "specmesh.arm.acceptance", "gauge", "1", "Accepted / drafted of an arm, old steps discounted", (POOL, ARM)
)
ARM_DEMAND = Metric(
    "specmesh.arm.demand", "counter", "{step}",
    "Steps that would choose the pool if it were not busy, also while it has no replica", (POOL,),
)  # fmt: skip
ROUTER_SESSIONS = Metric("specmesh.router.sessions", "gauge", "{session}", "Sessions of a router")
ROUTER_QUEUE = Metric(
    "specmesh.router.queue", "gauge", "{request}", "Requests that wait for a session of a router to end"
)
VERIFIERS = Metric("specmesh.router.verifiers", "gauge", "{replica}", "Verifiers that a router has a stream to")
GROUP_TIME = Metric(
    "specmesh.session.time", "counter", "s", "Time of the steps of sessions that leave drafts to the policy", (GROUP,)
)
GROUP_TOKENS = Metric(
    "specmesh.session.tokens", "counter", "{token}", "Tokens that those steps added to texts", (GROUP,)
)
TOKENS = Metric("specmesh.tokens", "counter", "{token}", "Tokens of requests that ended", (TOKEN_TYPE, TENANT))
DEVICE_TIME = Metric(
    "specmesh.device.time", "counter", "s", "Shares of batches on devices, of requests that ended", (POOL, TENANT)
)
FIRST_TOKEN = Metric(
    "gen_ai.server.time_to_first_token", "histogram", "s",
    "From a request's arrival to its first token, queue included", (OPERATION, MODEL), FIRST_TOKEN_SECONDS,
)  # fmt: skip
PER_TOKEN = Metric(
    "gen_ai.server.time_per_output_token", "histogram", "s", "Mean time between a request's tokens after the first",
    (OPERATION, MODEL), PER_TOKEN_SECONDS,
)  # fmt: skip
REQUEST_DURATION = Metric(
    "gen_ai.server.request.duration", "histogram", "s",
    "From a request's arrival to its end; error.type is empty if it went well",
    (OPERATION, MODEL, ERROR_TYPE), REQUEST_SECONDS,
)  # fmt: skip

# Verifier.
VERIFIER_QUEUE = Metric(
    "specmesh.verifier.queue", "gauge", "{session}",
    "Sessions of a verifier that wait for cache memory or for their turn in a tick",
)  # fmt: skip
VERIFIER_SESSIONS = Metric("specmesh.verifier.sessions", "gauge", "{session}", "Sessions open in a verifier")
KV_BLOCKS = Metric("specmesh.verifier.kv_blocks", "gauge", "{block}", "Blocks of the cache, used and free", (STATE,))
VERIFIER_BATCH = Metric("specmesh.verifier.batch_size", "histogram", "{session}", "Sessions in a tick", (), BATCH_SIZES)
TICK_DURATION = Metric(
    "specmesh.verifier.tick.duration", "histogram", "s", "Time of a tick: forward pass, verification, all of it",
    (PART,), SHORT_SECONDS,
)  # fmt: skip
VERIFIER_EVENTS = Metric(
    "specmesh.verifier.events", "counter", "{event}",
    "What the engine counts: ticks, sessions opened, leases ended, failed ticks, entries failed by reason", (EVENT,),
)  # fmt: skip

# Draft service.
DRAFT_DURATION = Metric(
    "specmesh.draft.duration",
    "histogram",
    "s",
    "Time of a block in the draft service: queue, compute",
    (PART,),
    SHORT_SECONDS,
)
DRAFT_BLOCKS = Metric(
    "specmesh.draft.blocks", "counter", "{block}",
    "Blocks by what ended them and where their context came from; predicted ones were there before they were asked for",
    (REASON, SOURCE),
)  # fmt: skip
DRAFT_TOKENS = Metric("specmesh.draft.tokens", "counter", "{token}", "Tokens that the draft service made")
DRAFT_BATCH = Metric(
    "specmesh.draft.batch_size", "histogram", "{session}", "Sessions in a batch, by block", (), BATCH_SIZES
)
DRAFT_SESSIONS = Metric("specmesh.draft.sessions", "gauge", "{session}", "Sessions whose context a draft service holds")

# Every service.
MODEL_INFO = Metric("specmesh.model.info", "gauge", "{model}", "1 for the model that is served", (KIND, MODEL, DIGEST))
CALL_DURATION = Metric(
    "rpc.server.call.duration", "histogram", "s",
    "Time of a call; streams that last as long as their peers are left out",
    (RPC_SYSTEM, RPC_METHOD, RPC_STATUS), CALL_SECONDS,
)  # fmt: skip
TELEMETRY_DROPPED = Metric(
    "specmesh.telemetry.dropped", "counter", "{item}", "Spans and reports of metrics that no collector took", (SIGNAL,)
)

METRICS = (
    STEP_DURATION, STEPS, FALLBACKS, DRAFTED, ACCEPTED, EMITTED, REFUSALS, ARM_STATE, ARM_ACCEPTANCE, ARM_DEMAND,
    ROUTER_SESSIONS, ROUTER_QUEUE, VERIFIERS, GROUP_TIME, GROUP_TOKENS, TOKENS, DEVICE_TIME, FIRST_TOKEN, PER_TOKEN,
    REQUEST_DURATION,
    VERIFIER_QUEUE, VERIFIER_SESSIONS, KV_BLOCKS, VERIFIER_BATCH, TICK_DURATION, VERIFIER_EVENTS,
    DRAFT_DURATION, DRAFT_BLOCKS, DRAFT_TOKENS, DRAFT_BATCH, DRAFT_SESSIONS,
    MODEL_INFO, CALL_DURATION, TELEMETRY_DROPPED,
)  # fmt: skip

# Spans. A call's span has the name of its method.
STEP_SPAN = "specmesh.step"
STEPS_SPAN = "specmesh.steps"
"""All steps after the first MAX_STEP_SPANS."""
DRAFT_SPAN = "specmesh.draft"
VERIFY_SPAN = "specmesh.verify"
QUEUE_SPAN = "specmesh.queue"
COMPUTE_SPAN = "specmesh.compute"
FORWARD_SPAN = "specmesh.forward"
KERNEL_SPAN = "specmesh.kernel"
AHEAD_SPAN = "specmesh.ahead"
"""The time for which a conditional block lay ready before its turn came."""
SPANS = (
    STEP_SPAN, STEPS_SPAN, DRAFT_SPAN, VERIFY_SPAN, QUEUE_SPAN, COMPUTE_SPAN, FORWARD_SPAN, KERNEL_SPAN, AHEAD_SPAN,
)  # fmt: skip
MAX_STEP_SPANS = 64

# Attributes of spans only.
STEP_INDEX = "specmesh.step.index"
STEP_COUNT = "specmesh.step.count"
BLOCK_LENGTH = "specmesh.block_length"
NUM_DRAFTED = "specmesh.drafted"
NUM_ACCEPTED = "specmesh.accepted"
NUM_EMITTED = "specmesh.emitted"
PREDICTED = "specmesh.predicted"
OVERLAP = "specmesh.seconds.overlap"
"""Seconds for which a predicted block was drafted, during an earlier step: no part of this one's time."""
IN_RUN = "specmesh.in_run"
"""Whether an earlier step asked the verifier for this one too, so that it sent no message."""
TAKEN = "specmesh.taken"
"""Whether the step before ended as a conditional block was sent ahead for."""
FALLBACK = "specmesh.fallback"
BATCH_SIZE = "specmesh.batch_size"
RULE = "specmesh.rule"
REQUEST_ID = "specmesh.request_id"
PART_SECONDS = "specmesh.seconds."
"""Prefix: one attribute for each part of a step's time."""
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"

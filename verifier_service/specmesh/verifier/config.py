"""What a verifier can be told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import ByteSize, Field, model_validator

from specmesh.runtime.config import ConfigModel, LogConfig, ServerConfig
from specmesh.runtime.given import KeyFault
from specmesh.runtime.pinning import Digest
from specmesh.runtime.sources import source_fault
from specmesh.runtime.telemetry.config import TelemetryConfig
from specmesh.runtime.types import MAX_LOGPROBS

TABLE_PREFIX = "table:"
MODEL_KEYS = ("dtype", "device", "quantization", "tensor_parallel")
"""Which a table does not have."""


class EngineConfig(ConfigModel):
    """Bounds of the engine."""

    max_block_length: int = Field(default=16, ge=1, le=64)
    """A longer block is refused (TOO_LONG) and the step done without it."""
    max_conditional: int = Field(default=4, ge=0)
    """Blocks that a session may send ahead, each for one outcome of its step in flight."""
    max_run_tokens: int = Field(default=256, ge=0)
    """Plain tokens that a session may ask for at once."""
    max_verify_rows: int = Field(default=512, ge=2)
    """Logit rows per tick; sessions beyond them wait for the next one."""
    max_prefill_tokens: int = Field(default=256, ge=1)
    """Prompt tokens per tick, over all sessions: the size of a chunk, and what a long prompt adds to a tick."""
    max_sessions: int | None = Field(default=None, ge=1)
    """Sessions open at once; others wait. None: as many as the cache memory holds."""
    max_waiting_sessions: int = Field(default=256, ge=0)
    """Sessions that may wait to be admitted; the next one gets RESOURCE_EXHAUSTED."""

    @model_validator(mode="after")
    def _one_block_fits(self) -> Self:
        if self.max_verify_rows <= self.max_block_length:
            raise KeyFault("max_verify_rows", "must be above max_block_length")
        return self


class LimitsConfig(ConfigModel):
    """Checked before any work; a refusal names the limit."""

    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """None: whatever fits the context."""
    max_open_chunks: int = Field(default=256, ge=1)
    """Messages of one `Open` call."""
    max_stop_token_ids: int = Field(default=128, ge=0)
    max_logprobs: int = Field(default=MAX_LOGPROBS, ge=0, le=MAX_LOGPROBS)
    max_lease_ms: int = Field(default=600_000, ge=1)
    max_unread_entries: int = Field(default=8192, ge=1)
    """Answers that a peer has not read; beyond them its stream is reset."""
    max_unread_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)


class TableConfig(ConfigModel):
    """Only for `model = "table:PATH.npz"`."""

    max_context_tokens: int = Field(default=4096, ge=2)
    delay_ms: float = Field(default=0.0, ge=0)
    """Slept per forward: an engine of known step time, for benchmarks."""


class VerifierConfig(ConfigModel):
    """Configuration of `specmesh verifier`."""

    model: str
    """A directory, a GGUF file, a hub name, `demo`, or `table:PATH.npz`."""
    model_name: str = ""
    """Name told to routers; empty: the model's own."""
    model_digest: Digest | None = None
    """Refuse to serve any other model than the one of this digest."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "cpu"
    quantization: Literal["nf4", "int8"] | None = None
    """Weights in 4 or 8 bits, by bitsandbytes."""
    kv_memory: ByteSize = Field(default=ByteSize(1024**3), gt=0)
    """Memory of the cache, e.g. "2GiB"."""
    prefix_sharing: bool = True
    """Whether sessions of one tenant share what the beginnings of their contexts have in common."""
    max_context_tokens: int | None = Field(default=None, ge=2)
    """None: as long as the model and the cache memory allow."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of one forward on a CPU; None: torch's own choice."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Processes that share the model, each on a device of this machine; `kv_memory` is that of one of them."""
    rank_timeout_seconds: float = Field(default=60.0, gt=0)
    """With `tensor_parallel`: a longer tick ends the process, which a rank that hangs would hold for ever."""
    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    limits: LimitsConfig = LimitsConfig()
    table: TableConfig = TableConfig()
    log: LogConfig = LogConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        of_other_kind = (
            ("dtype", "device", "quantization", "tensor_parallel")
            if self.model.startswith(TABLE_PREFIX)
            else ("table",)
        )
        for name in of_other_kind:
            if name in self.model_fields_set:
                raise KeyFault(name, f"has no meaning for model {self.model}")
        if self.tensor_parallel == 1 and "rank_timeout_seconds" in self.model_fields_set:
            raise KeyFault("rank_timeout_seconds", "has no meaning without tensor_parallel")
        return self

    def faults(self) -> Iterator[tuple[str, str]]:
        """A model that cannot be there."""
        table = self.model.removeprefix(TABLE_PREFIX)
        if table != self.model:
            fault = "" if Path(table).is_file() else f"cannot load the table: {table}: no such file"
        else:
            fault = source_fault(self.model)
        if fault:
            yield "model", fault

    @model_validator(mode="after")
    def _products_keep_the_dtype(self) -> Self:
        if self.quantization is not None and self.dtype == "float32":
            raise KeyFault("dtype", f"float32 cannot be kept with quantization {self.quantization}")
        return self

    @model_validator(mode="after")
    def _ranks_can_share_it(self) -> Self:
        if self.tensor_parallel > 1 and self.quantization is not None:
            raise KeyFault("quantization", "not together with tensor_parallel")
        if self.tensor_parallel > 1 and self.device not in ("cpu", "cuda"):
            fault = f"{self.device} with tensor_parallel, where each rank takes its own of cpu or cuda"
            raise KeyFault("device", fault)
        return self

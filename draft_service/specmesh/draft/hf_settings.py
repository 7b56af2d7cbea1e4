"""Settings of `kind = "hf"`, apart from the drafter: they can be checked without torch."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from specmesh.runtime.config import ConfigModel
from specmesh.runtime.given import KeyFault
from specmesh.runtime.sources import source_fault

KIBIBYTE = 1024
DISTILLED = "distilled:"


class HfSettings(ConfigModel):
    """Settings of `kind = "hf"`."""

    source: str
    """What `specmesh.model.loading.load_model` takes, or `distilled:NAME` for a distilled draft."""
    target_source: str = "demo"
    """Of a distilled draft: the target, whose embedding it shares."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "cpu"
    quantization: Literal["nf4", "int8"] | None = None
    kv_memory_bytes: int = Field(default=256 * KIBIBYTE * KIBIBYTE, ge=1)
    chunk_tokens: int = Field(default=128, ge=16)
    """Taken from prompts in one forward, all sessions together; the others wait, so that a restart is no herd."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of the arithmetic on CPU; by default torch decides."""
    context: bool = False
    """Mix with the session's own past, which a distilled draft can whose package has weights for it; on a CPU only."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        distilled = self.source.startswith(DISTILLED)
        if distilled and self.quantization is not None:
            raise KeyFault("quantization", "a distilled draft has its own")
        if not distilled and "target_source" in self.model_fields_set:
            raise KeyFault("target_source", "has no meaning but for a distilled draft")
        if self.context and not distilled:
            raise KeyFault("context", "only a distilled draft has weights for it")
        if self.context and not self.device.startswith("cpu"):
            raise KeyFault("context", "mixing with the session's own past is done on a CPU only")
        return self

    def faults(self) -> Iterator[tuple[str, str]]:
        """Sources that cannot be loaded."""
        sources = [("source", self.source), ("target_source", self.target_source)]
        for name, source in sources:
            if not source.startswith(DISTILLED) and (fault := source_fault(source)):
                yield name, fault

"""Settings of `kind = "table"`, apart from the drafter: they can be checked without torch."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from specmesh.runtime.config import ConfigModel


class TableSettings(ConfigModel):
    """Settings of `kind = "table"`."""

    path: Path
    """The .npz; `specmesh.draft.ngram_file` describes it."""
    context: bool | None = None
    """Mix with the session's own past; by default where the file has weights for it, and true only there."""
    max_context_tokens: int = Field(default=131_072, ge=1)
    max_kept_rows: int = Field(default=16_384, ge=1)
    """Of the static form. Checked between blocks: the rows of one block may come on top."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """A file that is not there."""
        if not self.path.is_file():
            yield "path", f"{self.path}: no such file"

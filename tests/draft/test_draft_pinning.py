"""A draft whose model is pinned."""

import pytest
from pydantic import ValidationError

from specmesh.draft.__main__ import _load
from specmesh.draft.config import DraftConfig
from specmesh.runtime.config import ConfigError


def test_a_pinned_draft_is_served_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The log of a first start says what to pin."""
    with caplog.at_level("INFO"):
        digest = _load(DraftConfig(kind="lookup")).info.model_digest
    assert [vars(record)["model_digest"] for record in caplog.records] == [digest]
    assert _load(DraftConfig(kind="lookup", model_digest=digest)).info.model_digest == digest
    with pytest.raises(ConfigError, match=f"model_digest: pinned to {digest}"):
        _load(DraftConfig(kind="lookup", model_digest=digest, drafter={"min_match": 2}))
    with pytest.raises(ValidationError, match="model_digest"):
        DraftConfig(model_digest="latest")

"""Nothing is compiled for a request: what one can need is compiled before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from kernel_forms import MAX_BLOCK, MAX_ROWS, VOCABULARY, WIDTH, batches

from specmesh.kernels import ops
from specmesh.kernels.inputs import DraftInput
from specmesh.runtime.types import Rule, Sampling

FORMS = Path(__file__).parents[1] / "kernel_forms.py"


def test_every_request_meets_only_what_is_compiled_ahead() -> None:
    """By Triton's own keys; and what is left out is found."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(FORMS)], capture_output=True, text=True, check=True, env=environment, timeout=250
    )
    report = json.loads(done.stdout)
    for name in ("verify", "draft", "draft_of_a_head"):
        assert report[name]["missing"] == []
        assert report[name]["ahead"] <= 24, "each takes seconds of a core when a service starts"
    assert report["verify"]["met"] == report["verify"]["ahead"], "what no request needs is compiled for nothing"
    assert report["verify_of_short_blocks"]["missing"] == ["accept", "threshold"]


def test_where_nothing_is_compiled_there_is_nothing_to_wait_for() -> None:
    logits = torch.empty(0, 40)
    ops.compile_verify_ahead(logits, vocabulary_size=40, max_block_length=4).finish()
    ops.compile_draft_ahead(logits, vocabulary_size=40).finish()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.timeout(300)
def test_on_a_gpu_no_request_compiles_anything() -> None:
    logits = torch.randn((MAX_ROWS, WIDTH), device="cuda").to(torch.bfloat16)
    ops.compile_verify_ahead(logits[:0], vocabulary_size=VOCABULARY, max_block_length=MAX_BLOCK).finish()
    ops.compile_draft_ahead(logits[:0], vocabulary_size=VOCABULARY).finish()
    compiled: list[str] = []
    triton.knobs.runtime.jit_post_compile_hook = lambda *, fn, **_: compiled.append(fn.name)
    try:
        for inputs in list(batches())[::7]:
            rows = sum(len(item.draft_token_ids) + 1 for item in inputs)
            ops.verify(logits[:rows], inputs, vocabulary_size=VOCABULARY)
        for sampling in (Sampling(), Sampling(top_p=0.9), Sampling(temperature=0.0), Sampling(presence_penalty=0.2)):
            for rule in (Rule.BLOCK, Rule.COUPLED):
                items = [DraftInput(3, 1, sampling, rule, 1, {7: 1}, 128, 0.995)] * 5
                ops.draft_step(logits[:5], items, vocabulary_size=VOCABULARY)
                ops.score_tokens(logits[:5], items, [3] * 5, vocabulary_size=VOCABULARY)
    finally:
        triton.knobs.runtime.jit_post_compile_hook = None
    assert compiled == []

"""What the torch reference costs per step on this machine: `python benchmarks/verify_reference.py` prints JSON.

Laws are shaped like a language model's (probability about rank^-1.6), drafts are near the target, 8 tokens are drafted.
Microseconds of this thread's CPU time, median over repeats of the whole op, packing included; other load does not
count.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specmesh.kernels.ops import DraftInput, VerifyInput, draft_step, verify
from specmesh.runtime.rows import RowArrays, decode_row
from specmesh.runtime.types import Rule, Sampling

VOCABULARY = 49_152
LENGTH = 8
REPEATS = 15
CASES: dict[str, tuple[Sampling, Rule]] = {
    "greedy": (Sampling(temperature=0), Rule.BLOCK),
    "coupled_t0.7": (Sampling(temperature=0.7), Rule.COUPLED),
    "coupled_t1": (Sampling(), Rule.COUPLED),
    "block_t0.7": (Sampling(temperature=0.7), Rule.BLOCK),
    "block_t1": (Sampling(), Rule.BLOCK),
    "block_t1_top_p": (Sampling(top_p=0.95), Rule.BLOCK),
    "block_t0.7_top_p_top_k": (Sampling(temperature=0.7, top_p=0.95, top_k=50), Rule.BLOCK),
    "coupled_t1_top_p": (Sampling(top_p=0.95), Rule.COUPLED),
}


def microseconds(op: Callable[[], object]) -> float:
    """Median of one call."""
    op()
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        op()
        times.append(time.thread_time() - start)
    return round(statistics.median(times) * 1e6, 1)


def language_like(rows: int, seed: int) -> Tensor:
    """Logits `[rows, V]`."""
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.argsort(torch.rand((rows, VOCABULARY), generator=generator), dim=1)
    return -1.6 * (1.0 + ranks).log() + 0.3 * torch.randn((rows, VOCABULARY), generator=generator)


def measure(sampling: Sampling, rule: Rule, batch: int, dtype: torch.dtype) -> dict[str, float]:
    """One case."""
    target = language_like(batch * (LENGTH + 1), seed=1).to(dtype)
    near = target.float() + 0.3 * torch.randn(target.shape, generator=torch.Generator().manual_seed(2))
    inputs = [_session(near[b * (LENGTH + 1) :], sampling, rule, b) for b in range(batch)]
    asks = [_ask(sampling, rule, b, 0) for b in range(batch)]
    outcomes = verify(target, inputs, vocabulary_size=VOCABULARY)
    return {
        "verify_us": microseconds(lambda: verify(target, inputs, vocabulary_size=VOCABULARY)),
        "draft_step_us": microseconds(lambda: draft_step(near[:batch], asks, vocabulary_size=VOCABULARY)),
        "accepted": sum(outcome.num_accepted for outcome in outcomes) / batch,
    }


def _ask(sampling: Sampling, rule: Rule, session: int, offset: int) -> DraftInput:
    return DraftInput(100, offset, sampling, rule, session + 1, None, 128, 0.995)


def _session(logits: Tensor, sampling: Sampling, rule: Rule, session: int) -> VerifyInput:
    tokens: list[int] = []
    rows: list[RowArrays] = []
    for offset in range(LENGTH):
        ask = _ask(sampling, rule, session, offset)
        token = draft_step(logits[offset : offset + 1], [ask], vocabulary_size=VOCABULARY)[0]
        tokens.append(token.token_id)
        rows += [decode_row(token.row)] if token.row is not None else []
    key = session + 1 if rule is Rule.COUPLED else session + 1000
    return VerifyInput(100, tokens, rows, sampling, rule, key)


def main(batches: Sequence[int] = (1, 8)) -> None:
    """Prints one JSON object."""
    torch.set_num_threads(1)
    results = {
        f"{name}_{str(dtype).removeprefix('torch.')}_batch{batch}": measure(sampling, rule, batch, dtype)
        for name, (sampling, rule) in CASES.items()
        for batch in batches
        for dtype in (torch.float32, torch.bfloat16)
    }
    print(json.dumps({"vocabulary": VOCABULARY, "drafted": LENGTH, "threads": 1, "steps": results}, indent=1))


if __name__ == "__main__":
    main()

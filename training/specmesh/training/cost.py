"""What a draft token costs, in target tokens: model and sampling as the services run them, without the network."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import quantiles

import torch

from specmesh.kernels.inputs import DraftInput, VerifyInput
from specmesh.kernels.ops import draft_step, verify
from specmesh.model.paged import PagedModel
from specmesh.model.spans import Span
from specmesh.runtime.types import Rule, Sampling
from specmesh.training.arms import BLOCK_TOKENS
from specmesh.training.measure import MAX_BLOCK_LENGTH

CONTEXT = 192
WARM_UP = 3
BLOCK_DRAFTED = 4


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds. `target`: a plain step. `verify[k]`: one that verifies k drafted tokens, k = 0..8. `draft`: a token."""

    target: float
    verify: tuple[float, ...]
    draft: Mapping[str, float]

    def share(self, name: str) -> float:
        """A draft token, in target tokens."""
        return self.draft[name] / self.target

    def speed(self, name: str, tokens_per_step: tuple[float, ...]) -> tuple[float, int]:
        """(tokens per target token's time, block length) at the best block length, drafting and verifying in turn."""
        speeds = [
            (tokens * self.target / (k * self.draft[name] + self.verify[k]), k)
            for k, tokens in enumerate(tokens_per_step, start=1)
        ]
        return max(speeds)


def measure_costs(
    target: PagedModel,
    drafts: Mapping[str, PagedModel],
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Lower quartiles at batch 1, context 192, greedy.

    All steps are timed in turn, as they come in service: a block does not find its draft's weights in the cache, and
    whatever else the machine does meets them all alike. A draft token is a fourth of a block of four.
    """
    steps = {f"verify {k}": _verify_step(target, k) for k in range(MAX_BLOCK_LENGTH + 1)}
    steps |= {f"draft {name}": _draft_block(model) for name, model in drafts.items()}
    seconds = _timed(steps, repeats, clock)
    verifying = tuple(seconds[f"verify {k}"] for k in range(MAX_BLOCK_LENGTH + 1))
    return Costs(verifying[0], verifying, {name: seconds[f"draft {name}"] / BLOCK_DRAFTED for name in drafts})


@torch.inference_mode()
def _timed(steps: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(WARM_UP + repeats):
        for name, step in steps.items():
            began = clock()
            step()
            taken[name].append(clock() - began)
    return {name: quantiles(seconds[WARM_UP:], n=4)[0] for name, seconds in taken.items()}


def _prepared(model: PagedModel) -> list[int]:
    """Block table of a session whose context is in the cache."""
    num_blocks = -(-(CONTEXT + MAX_BLOCK_LENGTH + 1) // BLOCK_TOKENS)
    model.allocate_cache(num_blocks)
    table = list(range(num_blocks))
    with torch.inference_mode():
        model.forward([Span([7] * CONTEXT, 0, table, CONTEXT)])
    return table


def _verify_step(model: PagedModel, num_drafted: int) -> Callable[[], object]:
    table, tokens = _prepared(model), [7] * (num_drafted + 1)
    asked = VerifyInput(CONTEXT + 1, tokens[1:], (), Sampling(temperature=0.0), Rule.BLOCK, 1, None)

    def step() -> object:
        logits = model.forward([Span(tokens, CONTEXT, table, 0)])
        return verify(logits, [asked], vocabulary_size=model.vocabulary_size)

    return step


def _draft_block(model: PagedModel) -> Callable[[], object]:
    table = _prepared(model)
    asked = DraftInput(CONTEXT + 1, 0, Sampling(temperature=0.0), Rule.BLOCK, 1, None, 128, 0.995)

    def step() -> object:
        for _ in range(BLOCK_DRAFTED):
            logits = model.forward([Span([7], CONTEXT, table, 0)])
            drafted = draft_step(logits, [asked], vocabulary_size=model.vocabulary_size, token_map=model.token_map)
        return drafted

    return step

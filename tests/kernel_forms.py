"""Run alone, without the interpreter and without a GPU: `python tests/kernel_forms.py` prints JSON.

Which compiled code a launch needs is asked of Triton itself, by the hook that it calls before it compiles: so the keys
are its own, and nothing is compiled. What is said to be compiled ahead is compared with what a covering set of
requests launches.
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget

from specmesh.kernels.compiled.ahead import draft_launches, verify_launches
from specmesh.kernels.compiled.draft_plan import DraftCapacity, DraftPlan, pack_rows
from specmesh.kernels.compiled.forms import Requests
from specmesh.kernels.compiled.launching import Launch
from specmesh.kernels.compiled.pack import pack
from specmesh.kernels.compiled.plan import Capacity, VerifyPlan
from specmesh.kernels.inputs import DraftInput, VerifyInput
from specmesh.runtime.types import Rule, Sampling

VOCABULARY, WIDTH = 50_257, 50_304
MAX_BLOCK, MAX_ROWS = 16, 512
PLAIN = Sampling(temperature=0.7)
SAMPLINGS = {
    "plain": PLAIN,
    "greedy": Sampling(temperature=0.0),
    "greedy_biased": Sampling(temperature=0.0, logit_bias=((5, 1.0),)),
    "top_p": Sampling(top_p=0.9),
    "top_k": Sampling(top_k=50),
    "min_p": Sampling(min_p=0.1),
    "biased": Sampling(logit_bias=((5, 1.0), (9000, -2.0))),
    "penalised": Sampling(frequency_penalty=0.3),
    "both": Sampling(top_p=0.9, repetition_penalty=1.2),
}


class NoGpu:
    """As much of a driver as the keys of compiled code depend on."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Keys(set[tuple[str, object]]):
    """Of the code that launches need."""

    def of(self, launches: Sequence[Launch]) -> None:
        triton.knobs.runtime.jit_cache_hook = self._note
        for launch in launches:
            launch.kernel.warmup(*launch.arguments, grid=launch.grid, **launch.options)

    def _note(self, *, key: object, fn: object, **_: object) -> bool:
        self.add((fn.name, str(key)))  # type: ignore[attr-defined]
        return True


def block(length: int, row_size: int, sampling: Sampling, rule: Rule) -> VerifyInput:
    ids = np.arange(row_size, dtype=np.uint32)
    bare = sampling.greedy or rule is Rule.COUPLED or row_size == 0
    rows = [] if bare else [(ids, np.ones(row_size, np.uint32))] * length
    return VerifyInput(3, [0] * length, rows, sampling, rule, 1, {7: 1})


def batches() -> Iterator[list[VerifyInput]]:
    """Every length and size of rows with every sampling, rule and number of sessions, and mixtures of them."""
    rules, samplings = tuple(Rule), tuple(SAMPLINGS.values())
    for length, size, sampling in product((0, 7, 8, MAX_BLOCK), (0, 64, 65), samplings):
        for rule, sessions in product(rules, (1, 14, MAX_ROWS)):
            yield [block(length, size, sampling, rule)] * min(sessions, MAX_ROWS // (length + 1))
    chance = random.Random(1)
    for _ in range(100):
        yield [
            block(chance.randint(0, MAX_BLOCK), chance.choice((0, 1, 64, 65, 300)), sampling, chance.choice(rules))
            for sampling in chance.choices(samplings, k=chance.randint(2, 25))
        ]


def met_by_verify() -> Keys:
    """What the batches launch, on logits that are whole or the first rows of more."""
    keys = Keys()
    recorded = torch.empty((MAX_ROWS, WIDTH), dtype=torch.bfloat16)
    for inputs in batches():
        rows = sum(len(item.draft_token_ids) + 1 for item in inputs)
        packed = pack(inputs, VOCABULARY, 2 * rows)
        plan = VerifyPlan(torch.device("cpu"), VOCABULARY, Capacity(2 * rows, len(inputs) + 1, len(packed.numbers)))
        keys.of(plan.launches(recorded[:rows], plan.form_of(packed)))
    return keys


def met_by_drafts(token_map: torch.Tensor | None, columns: int) -> Keys:
    """Rows, and tokens that are sure."""
    keys = Keys()
    for sampling, sessions in product(SAMPLINGS.values(), (1, 5, 40)):
        logits = torch.empty((sessions, WIDTH), dtype=torch.bfloat16)
        items = [DraftInput(3, 1, sampling, Rule.BLOCK, 1, {7: 1}, 128, 0.995)] * sessions
        if not sampling.greedy:
            numbers, form = pack_rows(items, columns, 2 * sessions)
            capacity = DraftCapacity(2 * sessions, form.room, len(numbers))
            plan = DraftPlan(torch.device("cpu"), columns, capacity, token_map)
            keys.of(plan.launches(logits, form))
        for rule in (Rule.BLOCK, Rule.COUPLED) if sampling.greedy else (Rule.COUPLED,):
            packed = pack([block(0, 0, sampling, rule)] * sessions, columns, 2 * sessions)
            capacity = Capacity(2 * sessions, sessions, len(packed.numbers))
            sure = VerifyPlan(torch.device("cpu"), columns, capacity)
            keys.of(sure.launches(logits, sure.form_of(packed), token_map))
    return keys


def main() -> None:
    """`missing`: what requests need and nothing compiles; with `MAX_BLOCK` as given, and with shorter blocks alone."""
    triton.runtime.driver.set_active(NoGpu())
    a_row = torch.zeros((1, WIDTH), dtype=torch.bfloat16)
    met = met_by_verify()
    report: dict[str, object] = {}
    for name, length in (("verify", MAX_BLOCK), ("verify_of_short_blocks", 7)):
        ahead = Keys()
        ahead.of(verify_launches(a_row, VOCABULARY, Requests(length)))
        report[name] = {"ahead": len(ahead), "met": len(met), "missing": sorted({k for k, _ in met - ahead})}
    head = torch.arange(0, 3 * WIDTH, 3)
    for name, token_map, columns in (("draft", None, VOCABULARY), ("draft_of_a_head", head, VOCABULARY)):
        ahead = Keys()
        ahead.of(draft_launches(a_row, int(head[columns - 1]) + 1 if token_map is not None else columns, token_map))
        wanted = met_by_drafts(token_map, columns)
        report[name] = {"ahead": len(ahead), "met": len(wanted), "missing": sorted({k for k, _ in wanted - ahead})}
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()

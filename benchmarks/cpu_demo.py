"""The demo's mesh against transformers' `generate` of the same target on this machine: TARGETS.md, "CPU, 2 cores".

bfloat16 (`--dtype`), greedy, whole requests with prefill and gRPC included. Where the processor has no bfloat16
products (`bfloat16_products` in the output), rows cost what they cost one by one, and nothing drafted pays. Runs take
turns (mesh with drafts, mesh without, transformers), so that all three meet the same machine. `--order shifting` goes
through both domains by turns, else one comes after the other; the policy is the default and learns as it goes. A prompt
during which other processes took more than `--others` cores does not count and is asked again, up to `TRIES` times.
Prints JSON; `--steps` also writes what every step of every prompt took, by part.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import truediv
from pathlib import Path
from typing import Any

import torch
from measure import OthersWork, machine
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from specmesh.client import AsyncClient, Options
from specmesh.command.demo_assets import demo_model
from specmesh.command.mesh_check import check_mesh, mesh_given
from specmesh.command.report import step_json, totals_by_arm
from specmesh.command.up import started_mesh
from specmesh.model.loading import DTYPES, has_bfloat16_products
from specmesh.v1 import router_service_pb2 as pb

MAX_TOKENS = 128
ROUNDS = 3
TRIES = 8
TARGET_RATIO = {"code": 1.5, "prose": 1.2}
PROMPTS: Mapping[str, Sequence[str]] = {
    "code": (
        "def binary_search(items, target):\n"
        '    """Return the index of target in a sorted list, or -1."""\n    low, high = 0, len(items) - 1\n',
        'import json\n\n\ndef load_settings(path):\n    """Load settings from a JSON file."""\n',
        'import csv\n\n\ndef read_rows(path):\n    """Return the rows of a CSV file."""\n    with open(path) as f:\n',
        'def merge_sort(items):\n    """Sort a list by merging."""\n    if len(items) <= 1:\n        return items\n',
    ),
    "prose": (
        "The old lighthouse keeper climbed the stairs every evening. One night, as the storm",
        "Photosynthesis is the process by which plants",
        "In the spring of that year the village decided to build a bridge over the river, because",
        "The history of the printing press begins in",
    ),
}


class Transformers:
    """The same target, loaded by transformers alone."""

    def __init__(self, source: str, dtype: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(source)
        self._model = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype])  # in eval mode

    def tokens_per_second(self, prompt: str) -> float:
        """One greedy generation of exactly MAX_TOKENS."""
        began = time.perf_counter()
        inputs = self._tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            output = self._model.generate(
                **inputs, do_sample=False, max_new_tokens=MAX_TOKENS, min_new_tokens=MAX_TOKENS, use_cache=True
            )
        tokens = output.shape[1] - inputs["input_ids"].shape[1]
        return float(tokens / (time.perf_counter() - began))


async def mesh_tokens_per_second(
    client: AsyncClient, prompt: str, draft_mode: str, steps: list[pb.StepReport]
) -> float:
    """The same through the mesh; the reports of its steps go to `steps`."""
    options: Options = {"max_output_tokens": MAX_TOKENS, "temperature": 0.0, "ignore_eos": True, "step_reports": True}
    began = time.perf_counter()
    generation = await client.generate(prompt, draft_mode=draft_mode, **options)  # type: ignore[arg-type, misc]
    steps += generation.steps
    return len(generation.token_ids) / (time.perf_counter() - began)


@dataclass
class Measured:
    """Tokens per second of the three ways on one domain, and the steps of the first."""

    drafts: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    transformers: list[float] = field(default_factory=list)
    steps: list[list[pb.StepReport]] = field(default_factory=list)

    def add(self, drafts: float, plain: float, transformers: float, steps: list[pb.StepReport]) -> None:
        """One prompt."""
        self.drafts.append(drafts)
        self.plain.append(plain)
        self.transformers.append(transformers)
        self.steps.append(steps)

    def prompts(self) -> list[dict[str, Any]]:
        """Of each prompt the three speeds and all steps."""
        columns = zip(self.drafts, self.plain, self.transformers, self.steps, strict=True)
        return [
            {"drafts": d, "plain": p, "transformers": t, "steps": [step_json(step) for step in steps]}
            for d, p, t, steps in columns
        ]

    def summary(self, target: float) -> dict[str, Any]:
        """Total tokens over total time, so that slow runs weigh as much as they last."""
        drafts, plain, transformers = map(statistics.harmonic_mean, (self.drafts, self.plain, self.transformers))
        return {
            "prompts": len(self.drafts),
            "tokens_per_second": {
                "drafts": round(drafts, 2), "plain": round(plain, 2), "transformers": round(transformers, 2),
            },
            "ratio_to_transformers": round(drafts / transformers, 3),
            "least_ratio_to_transformers": round(min(map(truediv, self.drafts, self.transformers)), 3),
            "plain_ratio_to_transformers": round(plain / transformers, 3),
            "ratio_to_plain": round(drafts / plain, 3),
            "target_ratio_to_transformers": target,
            "arms": {name: total.as_json() for name, total in totals_by_arm(chain.from_iterable(self.steps)).items()},
        }  # fmt: skip


Results = Mapping[str, Measured]
"""By domain."""


def schedule(domains: Sequence[str], rounds: int, order: str) -> list[tuple[str, str]]:
    """(domain, prompt) in the order in which they are asked."""
    rows = [[(domain, prompt) for prompt in PROMPTS[domain]] * rounds for domain in domains]
    return [pair for pairs in (zip(*rows, strict=True) if order == "shifting" else rows) for pair in pairs]


async def compare(
    client: AsyncClient,
    peer: Transformers,
    asked: Sequence[tuple[str, str]],
    others: float,
    say: Callable[[str], None],
) -> Results:
    """Every prompt, the three ways in turn."""
    measured: dict[str, Measured] = {domain: Measured() for domain, _ in asked}
    for domain, prompt in asked:
        for _ in range(TRIES):
            work, steps = OthersWork(), list[pb.StepReport]()
            drafts = await mesh_tokens_per_second(client, prompt, "AUTO", steps)
            plain = await mesh_tokens_per_second(client, prompt, "OFF", [])
            transformers = await asyncio.to_thread(peer.tokens_per_second, prompt)
            busy = work.cores()
            say(f"{domain}: {drafts:.1f}, plain {plain:.1f}, transformers {transformers:.1f}; others {busy:.2f} cores")
            if busy <= others:
                measured[domain].add(drafts, plain, transformers, steps)
                break
    return measured


async def run(
    asked: Sequence[tuple[str, str]], others: float, dtype: str, console: Console
) -> tuple[list[str], Results]:
    """Start the demo's mesh, warm everything up, compare; the pools of drafts, and what was measured by domain."""
    config, _ = check_mesh(mesh_given(None, 0, dtype, os.environ), os.environ)
    peer = Transformers(str(demo_model(console)), dtype)
    async with (
        started_mesh(config, console, show_log=False) as mesh,
        AsyncClient(mesh.address, timeout=600.0) as client,
    ):
        await mesh_tokens_per_second(client, "Hello", "AUTO", [])
        await asyncio.to_thread(peer.tokens_per_second, "Hello")
        return [draft.pool for draft in config.drafts], await compare(client, peer, asked, others, console.print)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--domain", dest="domains", action="append", choices=sorted(PROMPTS), help="repeat; else all")
    parser.add_argument("--order", choices=("blocks", "shifting"), default="blocks")
    parser.add_argument("--others", type=float, default=0.1, help="cores that other processes may take")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the target, both ways")
    parser.add_argument("--steps", type=Path, help="a file for the steps of all prompts, JSON")
    given = parser.parse_args()
    asked = schedule(given.domains or list(PROMPTS), given.rounds, given.order)
    pools, measured = asyncio.run(run(asked, given.others, given.dtype, Console(file=sys.stderr)))
    if given.steps is not None:
        steps = {domain: each.prompts() for domain, each in measured.items()}
        given.steps.write_text(json.dumps(steps) + "\n", encoding="utf-8")
    about = {"order": given.order, "dtype": given.dtype, "drafts": pools, "threads": torch.get_num_threads()}
    about |= {"machine": machine(), "bfloat16_products": has_bfloat16_products()}
    results = {domain: each.summary(TARGET_RATIO[domain]) for domain, each in measured.items() if each.drafts}
    print(json.dumps({**about, **results}, indent=2))


if __name__ == "__main__":
    main()

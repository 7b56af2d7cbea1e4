"""The demo's mesh against transformers' `generate` of the same target on this machine: TARGETS.md, "CPU, 2 cores".

bfloat16, greedy, whole requests with prefill and gRPC included. Runs take turns (mesh with drafts, mesh without,
transformers), so that all three meet the same machine. Prints JSON.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from measure import machine
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from specmesh.client import AsyncClient, Options
from specmesh.command.demo_assets import demo_config, demo_model
from specmesh.command.report import totals_by_arm
from specmesh.command.up import started_mesh
from specmesh.v1 import router_service_pb2 as pb

MAX_TOKENS = 128
ROUNDS = 3
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

    def __init__(self, source: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(source)
        self._model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)  # in eval mode

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


async def compare(client: AsyncClient, peer: Transformers, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Every prompt in every round, the three ways in turn."""
    results: dict[str, Any] = {}
    for domain, prompts in PROMPTS.items():
        speeds: dict[str, list[float]] = {"drafts": [], "plain": [], "transformers": []}
        steps: list[pb.StepReport] = []
        for number in range(rounds):
            for prompt in prompts:
                speeds["drafts"].append(await mesh_tokens_per_second(client, prompt, "AUTO", steps))
                speeds["plain"].append(await mesh_tokens_per_second(client, prompt, "OFF", []))
                speeds["transformers"].append(await asyncio.to_thread(peer.tokens_per_second, prompt))
            say(f"{domain}, round {number + 1} of {rounds}: {_medians(speeds)}")
        results[domain] = _summary(domain, speeds, steps)
    return results


def _medians(speeds: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 2) for name, values in speeds.items()}


def _summary(domain: str, speeds: Mapping[str, list[float]], steps: list[pb.StepReport]) -> dict[str, Any]:
    """Total tokens over total time, so that slow runs weigh as much as they last."""
    overall = {name: statistics.harmonic_mean(values) for name, values in speeds.items()}
    return {
        "tokens_per_second": {name: round(value, 2) for name, value in overall.items()},
        "ratio_to_transformers": round(overall["drafts"] / overall["transformers"], 3),
        "plain_ratio_to_transformers": round(overall["plain"] / overall["transformers"], 3),
        "ratio_to_plain": round(overall["drafts"] / overall["plain"], 3),
        "target_ratio_to_transformers": TARGET_RATIO[domain],
        "arms": {name: total.as_json() for name, total in totals_by_arm(steps).items()},
    }


async def run(rounds: int, console: Console) -> dict[str, Any]:
    """Start the demo's mesh, warm everything up, compare."""
    config = demo_config(console)
    peer = Transformers(str(demo_model(console)))
    async with (
        started_mesh(config, console, show_log=False) as mesh,
        AsyncClient(mesh.address, timeout=600.0) as client,
    ):
        await mesh_tokens_per_second(client, "Hello", "AUTO", [])
        await asyncio.to_thread(peer.tokens_per_second, "Hello")
        results = await compare(client, peer, rounds, console.print)
    return {"machine": machine(), "threads": torch.get_num_threads(), "drafts": _pools(config.drafts), **results}


def _pools(drafts: Sequence[Any]) -> list[str]:
    return [draft.pool for draft in drafts]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    report = asyncio.run(run(parser.parse_args().rounds, Console(file=sys.stderr)))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

"""The demo's mesh against transformers and against itself: the promise of docs/exactness.md, on real models.

The target runs in float32 on the CPU, the drafts as they are shipped. Greedy texts must be those of transformers'
`generate`, and texts of one seed must be one text: without drafts, with each draft alone, and with all of them under
the default policy. Prints JSON; ends with status 1 when a text differs.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cpu_demo import PROMPTS
from measure import machine
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from specmesh.client import AsyncClient
from specmesh.command.demo_assets import demo_model
from specmesh.command.mesh_check import check_mesh, mesh_given
from specmesh.command.up import started_mesh

Way = Mapping[str, Any]
"""Options of a request."""

SEEDS = (1, 2, 3)
SAMPLED: tuple[Way, ...] = ({"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9})


@dataclass
class Tally:
    """Texts compared, those that were equal, and what was drafted for them."""

    texts: int = 0
    equal: int = 0
    drafted: int = 0
    accepted: int = 0


def greedy_by_transformers(source: str, prompts: Sequence[str], num_tokens: int) -> list[list[int]]:
    """Of the same target in float32."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    texts = []
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            output = model.generate(**inputs, do_sample=False, max_new_tokens=num_tokens, min_new_tokens=num_tokens)
        texts.append(output[0, inputs["input_ids"].shape[1] :].tolist())
    return texts


async def compare(
    client: AsyncClient, prompts: Sequence[str], truths: Sequence[list[int]], options: Way, ways: Sequence[Way]
) -> Tally:
    """Every prompt in every way against its truth."""
    tally = Tally()
    for way in ways:
        asked: Any = {"max_output_tokens": len(truths[0]), "ignore_eos": True, **options, **way}
        generations = await asyncio.gather(*(client.generate(prompt, **asked) for prompt in prompts))
        for generation, truth in zip(generations, truths, strict=True):
            usage = generation.finished.usage if generation.finished else None
            tally.texts += 1
            tally.equal += list(generation.token_ids) == truth
            tally.drafted += usage.drafted_token_count if usage else 0
            tally.accepted += usage.accepted_token_count if usage else 0
    return tally


async def run(num_tokens: int, console: Console) -> dict[str, Any]:
    """Start the mesh, make the truths, compare."""
    config, _ = check_mesh(mesh_given(None, 0, "float32", os.environ), os.environ)
    prompts = [prompts[0] for prompts in PROMPTS.values()]
    greedy = greedy_by_transformers(str(demo_model(console)), prompts, num_tokens)
    plain: Way = {"draft_mode": "OFF"}
    alone: list[Way] = [
        {"draft_mode": "ONLY", "arms": [draft.pool], "max_block_length": length}
        for draft in config.drafts
        for length in (3, 8)
    ]
    results: dict[str, Any] = {}
    async with (
        started_mesh(config, console, show_log=False) as mesh,
        AsyncClient(mesh.address, timeout=600.0) as client,
    ):
        tally = await compare(client, prompts, greedy, {"temperature": 0.0}, [plain, *alone, {}])
        results["greedy, against transformers"] = vars(tally)
        for seed, options in zip(SEEDS, [*SAMPLED, SAMPLED[0]], strict=True):
            seeded: Way = {**options, "seed": seed}
            asked: Any = {"max_output_tokens": num_tokens, "ignore_eos": True, **seeded, **plain}
            truths = [list((await client.generate(prompt, **asked)).token_ids) for prompt in prompts]
            tally = await compare(client, prompts, truths, seeded, [*alone, {}])
            results[f"seed {seed}, {options}, against no drafts"] = vars(tally)
    return results


def main() -> int:
    """Compare and print; 1 when a text differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=48, help="of every text")
    results = asyncio.run(run(parser.parse_args().tokens, Console(file=sys.stderr)))
    print(json.dumps({"machine": machine(), **results}, indent=2))
    return int(any(tally["equal"] < tally["texts"] for tally in results.values()))


if __name__ == "__main__":
    sys.exit(main())

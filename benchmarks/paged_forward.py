"""A forward of a few tokens on the CPU: the paged forward beside plain transformers with a `DynamicCache`.

Both run the demo's target on the same inputs, in turns, so that a busy machine slows both. Times are of the wall clock;
with one thread `cpu_ms` is the processor's own time, which a busy machine hardly changes. Prints JSON.

    python benchmarks/paged_forward.py --dtypes bfloat16 --threads 1 2
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import machine
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from specmesh.model.loading import DTYPES, load_model, resolve
from specmesh.model.paged import PagedModel, Span

CONTEXTS = (100, 1000)
TOKENS = (1, 5, 9, 40)
SESSIONS = 8
ROUNDS = 9


def main() -> None:
    """All combinations asked for."""
    options = _options()
    folder = resolve(options.model)
    results = []
    for dtype in options.dtypes:
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).train(False)
        paged = load_model(folder, dtype=dtype).model
        paged.allocate_cache(SESSIONS * blocks(max(CONTEXTS) + max(TOKENS)))
        for threads in options.threads:
            torch.set_num_threads(threads)
            results += [
                {"dtype": dtype, "threads": threads, **result} for result in measure(plain, paged, options.rounds)
            ]
    print(json.dumps({"machine": machine(), "model": folder.name, "results": results}, indent=2))


def measure(plain: PreTrainedModel, paged: PagedModel, rounds: int) -> list[dict[str, Any]]:
    """One session at every context and number of tokens, then several sessions of five tokens each."""
    results = []
    for context in CONTEXTS:
        prompt = random_ids(context)
        for count in TOKENS:
            tokens = random_ids(count)
            pair = (paged_forward(paged, prompt, tokens, 1), plain_forward(plain, prompt, tokens))
            results.append({"context": context, "tokens": count, "sessions": 1, **in_turns(pair, rounds)})
        alone = (paged_forward(paged, prompt, random_ids(5), SESSIONS),)
        results.append({"context": context, "tokens": 5, "sessions": SESSIONS, **in_turns(alone, rounds)})
    return results


def paged_forward(model: PagedModel, prompt: Sequence[int], tokens: Sequence[int], sessions: int) -> Callable[[], None]:
    """Sessions of the same prompt, prefilled; the forward feeds `tokens` to each and wants all logits."""
    size = blocks(len(prompt) + len(tokens))
    tables = [range(size * index, size * index + size) for index in range(sessions)]
    for table in tables:
        model.forward([Span(prompt, 0, table, len(prompt))])
    spans = [Span(tokens, len(prompt), table, 0) for table in tables]

    def forward() -> None:
        model.forward(spans)

    return forward


def plain_forward(model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]) -> Callable[[], None]:
    """The same with transformers' own cache, cut back after each forward."""
    cache = DynamicCache(config=model.config)

    def feed(ids: Sequence[int]) -> None:
        with torch.inference_mode():
            model(torch.tensor([list(ids)]), cache=cache, use_cache=True)

    def forward() -> None:
        feed(tokens)
        cache.crop(-len(tokens))

    feed(prompt)
    return forward


def in_turns(forwards: Sequence[Callable[[], None]], rounds: int) -> dict[str, float]:
    """Milliseconds of each form and, where there are two, how many times faster the first is (median)."""
    wall: list[list[float]] = [[] for _ in forwards]
    processor: list[list[float]] = [[] for _ in forwards]
    for _ in range(rounds):
        for index, forward in enumerate(forwards):
            started, cpu = time.perf_counter(), time.process_time()
            forward()
            wall[index].append(1e3 * (time.perf_counter() - started))
            processor[index].append(1e3 * (time.process_time() - cpu))
    result: dict[str, float] = {}
    for name, times, cpu_times in zip(("paged", "transformers"), wall, processor, strict=False):
        result[f"{name}_ms"] = round(median(times), 2)
        result[f"{name}_best_ms"] = round(min(times), 2)
        result[f"{name}_cpu_ms"] = round(median(cpu_times), 2)
    if len(forwards) > 1:
        result["speedup"] = round(result["transformers_ms"] / result["paged_ms"], 2)
    return result


def random_ids(count: int) -> list[int]:
    """The same ones for both forms."""
    ids: list[int] = torch.randint(40_000, (count,), generator=torch.Generator().manual_seed(count)).tolist()
    return ids


def blocks(tokens: int) -> int:
    """Cache blocks of one session."""
    return -(-tokens // 16)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", type=lambda text: text if text == "demo" else Path(text))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=sorted(DTYPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""One verify step's forward of an 8B-shaped target (Llama-3-8B sizes, random weights), by context and sessions.

`step_ms`: the forward as the engine calls it after its warm-up, host work included: a recorded CUDA graph of the next
size up. `eager_ms`: the same without the graph. `limit_ms`: reading the weights and the keys and values once at
`--bandwidth`, or multiplying by the weights at `--tflops` where that takes longer; `share_of_limit` is that of
`step_ms`. `chunk`: what a chunk of a prompt adds to a tick of 8 sessions.
Medians; prints JSON.

    python benchmarks/verifier_step.py
    python benchmarks/verifier_step.py --device cpu --shape tiny   # does it run
"""

import argparse
import json
import random
import time
from array import array
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specmesh.model.attention import ATTENTION_NAME
from specmesh.model.blocks import BLOCK_TOKENS, blocks_for
from specmesh.model.checks import fuse_where_equal
from specmesh.model.paged import PagedModel
from specmesh.model.spans import Span
from specmesh.verifier.memory import HEADROOM_TOKENS
from specmesh.verifier.target import TargetModel

ROWS = 5
"""The context's last token and four drafted ones."""
HELD_SESSIONS, HELD_TOKENS = 128, 2048
CHUNK_BESIDE = 8
"""Sessions that go on decoding while a prompt comes in."""
CONTEXTS = (512, 8192)
SESSIONS = (1, 8, 32, 128)
SHAPES: dict[str, dict[str, Any]] = {
    "8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 200,
    },
}  # fmt: skip


def main() -> None:
    """All combinations that fit."""
    options = _options()
    model = build(options.shape, options.device)
    fused = not options.plain_layers and model.compiled and fuse_where_equal(model)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.module.parameters())
    multiplied = weights - size_of_embedding(model)
    per_token = model.bytes_per_block // BLOCK_TOKENS
    sizes = [(context, sessions) for context in options.contexts for sessions in options.sessions]
    needed = {size: size[1] * blocks_for(size[0] + ROWS) for size in sizes}
    fitting = [size for size in sizes if needed[size] * model.bytes_per_block <= options.cache_gib * 2**30]
    beside_chunk = blocks_for(options.chunk) + CHUNK_BESIDE * blocks_for(512 + ROWS)
    model.allocate_cache(max(beside_chunk, *(needed[size] for size in fitting)))
    eager = {size: timed(model, list(spans_of(*size)), options.rounds) for size in fitting}
    started = time.perf_counter()
    model.warm_up(ROWS * max(sessions for _, sessions in fitting), options.chunk)
    warm_up_seconds = round(time.perf_counter() - started, 1)
    results = []
    for context, sessions in fitting:
        read_ms = (multiplied + sessions * context * per_token) / options.bandwidth / 1e9
        limit_ms = max(read_ms, multiplied * sessions * ROWS / options.tflops / 1e9)  # two bytes, two operations
        step_ms = timed(model, list(spans_of(context, sessions)), options.rounds)
        results.append(
            {
                "context": context, "sessions": sessions, "limit_ms": round(limit_ms, 2), "step_ms": step_ms,
                "eager_ms": eager[context, sessions], "share_of_limit": round(limit_ms / step_ms, 2),
                "verified_tokens_per_second": round(1e3 * sessions * ROWS / step_ms),
            }
        )  # fmt: skip
    report = {
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else "none", "torch": torch.__version__,
        "shape": options.shape, "rows": ROWS, "fused_layers": fused, "weights_gb": round(weights / 1e9, 2),
        "warm_up_seconds": warm_up_seconds, "memory": memory(model, weights), "results": results,
        "chunk": chunk_beside_steps(model, options.chunk, options.rounds),
        "without_room": [{"context": size[0], "sessions": size[1]} for size in sizes if size not in fitting],
    }  # fmt: skip
    print(json.dumps(report, indent=2))


def size_of_embedding(model: PagedModel) -> int:
    """Bytes of the table of which a step reads a few rows."""
    table = model.module.get_input_embeddings().weight
    return int(table.numel() * table.element_size())


def memory(model: PagedModel, weights: int) -> dict[str, float]:
    """Bytes that a cached token takes, what of the cache sessions of 1,024 to 4,096 tokens hold unused (the room that
    they are admitted with, and blocks that are not full), and what 128 of 2,048 tokens take.
    """
    tokens = HELD_SESSIONS * HELD_TOKENS
    lengths = random.Random(0).choices(range(HELD_TOKENS // 2, 2 * HELD_TOKENS), k=1000)
    held = sum(blocks_for(length + HEADROOM_TOKENS) for length in lengths) * BLOCK_TOKENS
    found = {
        "kv_bytes_per_token": model.bytes_per_block // BLOCK_TOKENS,
        "held_unused": round(1 - sum(lengths) / held, 4),
        "weights_and_128_x_2048_gb": round((weights + tokens * model.bytes_per_block // BLOCK_TOKENS) / 1e9, 1),
    }
    if model.device.type == "cuda":
        found["device_gb"] = round(torch.cuda.get_device_properties(0).total_memory / 1e9, 1)
    return found


def chunk_beside_steps(model: PagedModel, tokens: int, rounds: int) -> dict[str, float]:
    """A tick of 8 sessions without and with a chunk of a prompt: the difference is what that prompt costs them."""
    size = blocks_for(512 + ROWS)
    first = blocks_for(tokens)
    steps = [
        Span([7] * ROWS, 512, array("i", range(at, at + size)), 0)
        for at in range(first, first + CHUNK_BESIDE * size, size)
    ]
    chunk = Span([7] * tokens, 0, array("i", range(first)), tokens)
    alone, together = timed(model, steps, rounds), timed(model, [*steps, chunk], rounds)
    return {"tokens": tokens, "sessions": CHUNK_BESIDE, "step_ms": alone, "with_chunk_ms": together}


def build(shape: str, device: str) -> PagedModel:
    """Random weights, made where they are used."""
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=16384, tie_word_embeddings=False)
    config._attn_implementation = ATTENTION_NAME
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device), torch.random.fork_rng(devices=[]):
            module = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return PagedModel(module, device=device, dtype=torch.bfloat16, vocabulary_size=config.vocab_size)


def spans_of(context: int, sessions: int) -> Iterator[Span]:
    """Each with blocks of its own; what is in the cache does not matter to the time."""
    size = blocks_for(context + ROWS)
    for index in range(sessions):
        yield Span([7] * ROWS, context, array("i", range(index * size, index * size + size)), 0)


def timed(model: TargetModel, spans: list[Span], rounds: int) -> float:
    """Milliseconds of one forward."""
    return awaited_ms(lambda: model.forward(spans), rounds)


def awaited_ms(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds, the device's work awaited: the median."""
    times = []
    for _ in range(3 + rounds):
        _await_device()
        started = time.perf_counter()
        work()
        _await_device()
        times.append(1e3 * (time.perf_counter() - started))
    return round(median(times[3:]), 3)


def _await_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--shape", default="8b", choices=sorted(SHAPES))
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS)
    parser.add_argument("--sessions", nargs="+", type=int, default=SESSIONS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chunk", type=int, default=256, help="tokens of a prompt in one tick")
    parser.add_argument("--plain-layers", action="store_true", help="the model's own layers, launch by launch")
    parser.add_argument("--cache-gib", type=float, default=48.0)
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s that a plain copy reaches")
    parser.add_argument("--tflops", type=float, default=790.0, help="that a large product in bfloat16 reaches")
    return parser.parse_args()


if __name__ == "__main__":
    main()

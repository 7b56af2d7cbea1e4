"""One verify step's forward of a Llama over one process or several, each with a GPU of this machine.

Sizes are those of Llama-3-8B with fewer layers, weights are random; rows, times and contexts are those of
`verifier_step.py`, and so is what is timed: the forward as rank 0's engine calls it, the message to the other ranks
included. Prints JSON.

    python benchmarks/tensor_parallel.py > one.json
    torchrun --nproc-per-node 2 benchmarks/tensor_parallel.py > two.json
    torchrun --nproc-per-node 2 benchmarks/tensor_parallel.py --device cpu --shape tiny   # does it run
"""

import argparse
import json
import os
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM
from verifier_step import CONTEXTS, ROWS, SESSIONS, SHAPES, spans_of, timed

from specmesh.model.blocks import blocks_for
from specmesh.model.loading import LoadedModel, load_model
from specmesh.model.place import leave, place_of
from specmesh.model.ranks import Ranks, follow, join
from specmesh.model.sharded import ShardedModel


def main() -> None:
    """Rank 0 measures, the others follow."""
    options = _options()
    size = int(os.environ.get("WORLD_SIZE", "1"))
    place = place_of(os.environ, size)
    ranks = None if place is None else join(place, options.device)
    folder = saved(options, ranks)
    loaded = load_model(folder, dtype="bfloat16", device=options.device, ranks=ranks)
    if ranks is None:
        report(options, size, loaded.model, loaded)
    elif ranks.rank > 0:
        follow(loaded.model, ranks)
    else:
        target = ShardedModel(loaded.model, ranks)
        report(options, size, target, loaded)
        target.end()
    if ranks is not None:
        leave(0)


def report(options: argparse.Namespace, size: int, target: Any, loaded: LoadedModel) -> None:  # noqa: ANN401
    """Measure and print."""
    target.allocate_cache(max(options.sessions) * blocks_for(max(options.contexts) + ROWS))
    target.warm_up(ROWS * max(options.sessions))
    results = []
    for context in options.contexts:
        for sessions in options.sessions:
            step_ms = timed(target, list(spans_of(context, sessions)), options.rounds)
            rate = round(1e3 * sessions * ROWS / step_ms)
            results.append(
                {"context": context, "sessions": sessions, "step_ms": step_ms, "verified_tokens_per_second": rate}
            )
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "none"
    about: dict[str, Any] = {"gpu": gpu, "torch": torch.__version__, "ranks": size, "shape": options.shape}
    kv_bytes = loaded.model.bytes_per_block // 16
    about |= {"layers": options.layers, "kv_bytes_per_token_and_rank": kv_bytes, "results": results}
    print(json.dumps(about, indent=2))


def saved(options: argparse.Namespace, ranks: Ranks | None) -> Path:
    """The model's folder, written by the first rank and kept for the next run."""
    folder = Path(gettempdir()) / f"specmesh-llama-{options.shape}-{options.layers}"
    if not (folder / "tokenizer.json").exists() and (ranks is None or ranks.rank == 0):
        sizes = SHAPES[options.shape] | {"num_hidden_layers": options.layers}
        config = LlamaConfig(**sizes, max_position_embeddings=16384, tie_word_embeddings=False)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(options.device):
            model = LlamaForCausalLM(config)
        torch.set_default_dtype(before)
        model.save_pretrained(folder)
        words = {f"w{index}": index for index in range(sizes["vocab_size"])}
        Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    if ranks is not None:
        ranks.agree(True)  # the others wait for the files
    return folder


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS[:1])
    parser.add_argument("--sessions", type=int, nargs="+", default=SESSIONS[:3])
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    main()

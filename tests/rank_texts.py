"""Greedy texts of a small random Llama over the ranks that torchrun has started: `rank_texts.py FOLDER cpu|cuda`.

Rank 0 prints one JSON object a line: how many of the texts equal transformers' own, launched one by one and, on a GPU,
recorded. Every session drafts: what is right, half right, or always wrong, 0, 3 or 7 tokens at a time.
"""

import json
import os
import sys
from pathlib import Path

import torch
from model_builders import plain_model, save_model, tiny_config
from test_golden import NUM_TOKENS, PROMPTS, Text, always_wrong, half_right, oracle, run_together
from verifier_parts import Stepper

from specmesh.model.loading import load_model
from specmesh.model.place import leave, place_of
from specmesh.model.ranks import follow, join
from specmesh.model.sharded import ShardedModel

WIDTH = 102
CONFIG = {
    "vocab_size": WIDTH, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
    "num_key_value_heads": 4, "initializer_range": 0.06,
}  # fmt: skip


def main(folder: Path, device: str) -> None:
    place = place_of(os.environ, int(os.environ["WORLD_SIZE"]))
    assert place is not None
    ranks = join(place, device)
    if ranks.rank == 0:
        save_model(folder, plain_model(tiny_config(**CONFIG)))
    ranks.agree(True)  # the others wait for the files
    model = load_model(folder, dtype="float32", ranks=ranks).model
    if ranks.rank > 0:
        follow(model, ranks)
        leave(0)
    target = ShardedModel(model, ranks)
    texts = golden_texts()
    for recorded in (False, True) if device == "cuda" else (False,):
        stepper = Stepper(target, num_blocks=600)
        if recorded:
            target.warm_up(64, 64)
        run_together(stepper, texts)
        equal = sum(text.output == list(text.truth) for text in texts)
        shape = [model.attention.num_heads, model.attention.num_kv_heads]
        line = {"recorded": recorded, "texts": len(texts), "equal": equal, "local_heads": shape}
        sys.stdout.write(json.dumps(line) + "\n")
        texts = golden_texts()
    target.end()
    leave(0)


def golden_texts() -> list[Text]:
    plain = plain_model(tiny_config(**CONFIG))
    truths = []
    for prompt in PROMPTS:
        output = plain.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0, suppress_tokens=[WIDTH - 1],
        )  # fmt: skip
        truths.append(output[0, len(prompt) :].tolist())
    shapes = [(draft, length) for draft in (oracle, half_right, always_wrong) for length in (0, 3, 7)]
    cases = [(prompt, truth, *shape) for prompt, truth in zip(PROMPTS, truths, strict=True) for shape in shapes]
    return [Text(index, *case) for index, case in enumerate(cases)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

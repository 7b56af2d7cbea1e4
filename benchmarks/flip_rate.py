"""How often the bits of a bfloat16 forward decide a token: `python benchmarks/flip_rate.py` prints JSON.

The same texts go through the demo's target token by token and alone, as plain decoding does it, then again as blocks,
and as blocks of several sessions in one forward, as verification does it. Where the two rows of logits of a position
differ, a seed may give two texts. `flips_per_token` is exact over all seeds for the logits that were seen: two draws
that share their Gumbel noise, from laws T and U, both give i with probability 1 / sum over j of max(T_j/T_i, U_j/U_i).
`bound` is specification 1.3's figure, E |change of the gap of the two likeliest| (1 - sum T^2); changes that open the
gap as often as they close it flip half as often. In float32 on a CPU the rows are the same, bit for bit.
"""

import argparse
import json
import sys
from collections.abc import Sequence

import torch
from measure import machine
from tokenizers import Tokenizer
from torch import Tensor

from specmesh.kernels.inputs import VerifyInput
from specmesh.kernels.ops import verify
from specmesh.model.blocks import blocks_for
from specmesh.model.loading import load_model
from specmesh.model.paged import PagedModel
from specmesh.model.spans import Span
from specmesh.runtime.types import Rule, Sampling

PROMPTS = (
    "Photosynthesis is the process by which plants",
    "The sea was calm and the old fisherman",
    'def binary_search(items, target):\n    """Return the index of target in a sorted list, or -1."""\n',
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
)
TEMPERATURES = (1.0, 0.7)
BLOCK = 5


def token_by_token(model: PagedModel, prompt: Sequence[int], count: int, seed: int) -> tuple[list[int], Tensor]:
    """`count` tokens drawn by the target under COUPLED, alone; and the logits `[count, V]` each was drawn from."""
    text, rows = list(prompt), []
    table = range(blocks_for(len(prompt) + count + BLOCK))
    model.forward([Span(text[:-1], 0, table, len(text) - 1)])
    for _ in range(count):
        logits = model.forward([Span(text[-1:], len(text) - 1, table, 0)])[:, : model.vocabulary_size]
        item = VerifyInput(len(text), [], [], Sampling(), Rule.COUPLED, seed)
        text.append(verify(logits, [item], vocabulary_size=model.vocabulary_size)[0].next_token)
        rows.append(logits[0].clone())
    return text, torch.stack(rows)


def in_blocks(model: PagedModel, texts: Sequence[list[int]], prompts: Sequence[int]) -> list[Tensor]:
    """The same logits by forwards over `BLOCK` tokens of every text; `prompts` are the lengths of the prompts."""
    size = max(blocks_for(len(text)) for text in texts)
    tables = [range(number * size, (number + 1) * size) for number in range(len(texts))]
    for text, length, table in zip(texts, prompts, tables, strict=True):
        model.forward([Span(text[: length - 1], 0, table, length - 1)])
    rows: list[list[Tensor]] = [[] for _ in texts]
    count = len(texts[0]) - prompts[0]
    for done in range(0, count, BLOCK):
        spans = [
            Span(text[start : min(start + BLOCK, len(text) - 1)], start, table, 0)
            for text, table, start in zip(texts, tables, (length - 1 + done for length in prompts), strict=True)
        ]
        logits = model.forward(spans)[:, : model.vocabulary_size]
        for mine, part in zip(rows, logits.split([len(span.token_ids) for span in spans]), strict=True):
            mine.append(part.clone())
    return [torch.cat(mine) for mine in rows]


def compare(one: Tensor, other: Tensor, temperature: float) -> dict[str, float]:
    """Two computations `[n, V]` of the same rows."""
    first, second = (each.double() / temperature for each in (one, other))
    likeliest = first.topk(2).indices
    gaps = [each.gather(1, likeliest) for each in (first, second)]
    change = ((gaps[0][:, 0] - gaps[0][:, 1]) - (gaps[1][:, 0] - gaps[1][:, 1])).abs()
    laws = [each.softmax(dim=-1) for each in (first, second)]
    certainty = laws[0].square().sum(dim=-1)
    return {
        "positions": len(one),
        "flips_per_token": flips(*laws).mean().item(),
        "bound": (change * (1 - certainty)).mean().item(),
        "expected": (change * (1 - certainty)).mean().item() / 2,
        "change_of_gap": change.mean().item(),
        "greedy_flips_per_token": (first.argmax(dim=-1) != second.argmax(dim=-1)).double().mean().item(),
        "total_variation": (laws[0] - laws[1]).abs().sum(dim=-1).mean().item() / 2,
    }


def flips(law: Tensor, other: Tensor) -> Tensor:
    """Chance `[n]` that draws from two laws `[n, V]` with the same noise differ."""
    order = (law / other).argsort(dim=-1, descending=True)
    law, other = law.gather(1, order), other.gather(1, order)
    # Where the ratio of j is at least that of i the larger term is T_j/T_i, else U_j/U_i.
    above = law.cumsum(dim=-1) / law
    below = (other.sum(dim=-1, keepdim=True) - other.cumsum(dim=-1)) / other
    return 1 - (1 / (above + below)).sum(dim=-1)


def measure(dtype: str, count: int) -> dict[str, object]:
    """All comparisons in one dtype."""
    loaded = load_model("demo", dtype=dtype)
    model = loaded.model
    tokenizer = Tokenizer.from_str(loaded.tokenizer.tokenizer_json.decode())
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    model.allocate_cache(len(prompts) * (blocks_for(max(map(len, prompts)) + count + BLOCK) + 1))
    pairs = [token_by_token(model, prompt, count, seed=11 + number) for number, prompt in enumerate(prompts)]
    texts, plain = [text for text, _ in pairs], torch.cat([rows for _, rows in pairs])
    lengths = [len(prompt) for prompt in prompts]
    alone = torch.cat([in_blocks(model, [text], [length])[0] for text, length in zip(texts, lengths, strict=True)])
    together = torch.cat(in_blocks(model, texts, lengths))
    return {
        f"{name}, temperature {temperature}": compare(plain, other, temperature)
        for name, other in ((f"blocks of {BLOCK}", alone), (f"blocks of {BLOCK}, {len(texts)} sessions", together))
        for temperature in TEMPERATURES
    }


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=250, help="per text")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    options = parser.parse_args()
    report = {dtype: measure(dtype, options.tokens) for dtype in options.dtypes}
    json.dump({"machine": machine(), "against token by token": report}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

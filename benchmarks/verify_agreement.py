"""Decisions of the compiled kernels against the reference on random batches: `python benchmarks/verify_agreement.py`.

Every rule, temperatures 0 to 1.7, top-k, top-p, min-p, penalties and biases, lengths 0 to 4, float32, bfloat16 and
float16, mixed in one batch; the kernels on the GPU (under the interpreter without one), the reference on the CPU, in
`--processes` at once. Prints JSON: rows of logits compared, sessions, and how many decided differently. In one batch of
`--every` also log-probabilities, and their largest difference; every row as a draft's, and how many differ in an id, a
weight or the token; and some sessions alone: how many come out otherwise by a bit than in their batch.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from random import Random

import torch
from torch import Tensor

from specmesh.kernels import ops
from specmesh.kernels.inputs import DraftInput, VerifyInput, VerifyOutcome
from specmesh.kernels.reference.draft_step import make_rows
from specmesh.runtime.types import Rule, Sampling

VOCABULARIES = (512, 997, 1000)
DTYPES = ("float32", "bfloat16", "float16")
Job = tuple[int, int, float, int, tuple[tuple[int, ...], tuple[torch.dtype, ...]]]
"""First seed, rows, seconds at most, batches of which one is looked at closely, (vocabularies, types of logits)."""
ALONE = 8
"""Sessions of a batch."""
SESSIONS = 256
"""Of one batch."""


def main() -> None:
    """As many batches as it takes."""
    options = _options()
    share = -(-options.rows // options.processes)
    dtypes = tuple(getattr(torch, name) for name in options.dtypes)
    kinds = (tuple(options.vocabularies), dtypes)
    jobs = [(options.seed + i, share, options.seconds, options.every, kinds) for i in range(options.processes)]
    total: Counter[str] = Counter()
    worst = 0.0
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for counts, difference in pool.imap_unordered(compare, jobs):
            total.update(counts)
            worst = max(worst, difference)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(json.dumps({"gpu": gpu, **total, "largest_logprob_difference": worst}, indent=1))


def compare(job: Job) -> tuple[dict[str, int], float]:
    """(counts, largest difference of a log-probability) of one process."""
    first_seed, rows, seconds, every, (vocabularies, dtypes) = job
    torch.set_num_threads(1)
    random = Random(first_seed)
    counts: Counter[str] = Counter()
    worst, stop = 0.0, time.monotonic() + seconds
    while counts["rows"] < rows and time.monotonic() < stop:
        size, dtype = random.choice(vocabularies), random.choice(dtypes)
        inputs, logits = batch_of(random, size, dtype)
        closely = counts["batches"] % every == 0
        asked = [0 if closely else None] * len(inputs)
        wanted = ops.verify(logits, inputs, vocabulary_size=size, num_top=asked)
        got = on_device(logits, inputs, size, asked)
        counts.update(rows=len(logits), sessions=len(inputs), batches=1)
        counts["different"] += sum(not same(one, other) for one, other in zip(got, wanted, strict=True))
        if closely:
            worst = max(worst, *(difference(one, other) for one, other in zip(got, wanted, strict=True)))
            counts.update(compare_alone(random, logits, inputs, size, got))
            counts.update(compare_drafts(random, logits, size))
    return dict(counts), worst


def compare_alone(
    random: Random, logits: Tensor, inputs: Sequence[VerifyInput], size: int, together: Sequence[VerifyOutcome]
) -> dict[str, int]:
    """Sessions alone against what they came to in their batch."""
    starts = list(accumulate((len(item.draft_token_ids) + 1 for item in inputs), initial=0))
    different = 0
    for b in random.sample(range(len(inputs)), ALONE):
        alone = on_device(logits[starts[b] : starts[b + 1]], [inputs[b]], size, [0])[0]
        different += alone != together[b] if alone.finite else together[b].finite
    return {"alone": ALONE, "alone_different": different}


def on_device(
    logits: Tensor, inputs: Sequence[VerifyInput], size: int, asked: Sequence[int | None]
) -> list[VerifyOutcome]:
    """The compiled form, wherever it runs."""
    from specmesh.kernels.compiled.verify import verify

    return verify(logits.to(_device()), inputs, vocabulary_size=size, num_top=asked)


def same(one: VerifyOutcome, other: VerifyOutcome) -> bool:
    """Whether they decide alike."""
    if not (one.finite and other.finite):
        return one.finite == other.finite
    return (one.num_accepted, one.next_token) == (other.num_accepted, other.next_token)


def difference(one: VerifyOutcome, other: VerifyOutcome) -> float:
    """Largest of their log-probabilities, where they decide alike."""
    if not one.finite or not same(one, other):
        return 0.0
    pairs = zip(one.logprobs, other.logprobs, strict=True)
    return max(abs(a.logprob - b.logprob) for a, b in pairs)


def compare_drafts(random: Random, logits: Tensor, size: int) -> dict[str, int]:
    """Every row of logits as a draft's."""
    items = [
        DraftInput(
            random.randrange(2**31), random.randrange(8), sampling_of(random, greedy=False), Rule.BLOCK,
            random.randrange(2**64), counts_of(random), random.choice((1, 32, 64, 128, 700)),
            random.choice((0.5, 0.995, 1.0)),
        )
        for _ in range(len(logits))
    ]  # fmt: skip
    from specmesh.kernels.compiled.draft_step import draft_step

    wanted = ops.draft_step(logits, items, vocabulary_size=size)
    got = draft_step(logits.to(_device()), items, vocabulary_size=size)
    pairs = zip(got, wanted, strict=True)
    different = sum((a.token_id, a.row, a.finite) != (b.token_id, b.row, b.finite) for a, b in pairs)
    return {"draft_rows": len(items), "draft_rows_different": different}


def batch_of(random: Random, size: int, dtype: torch.dtype) -> tuple[list[VerifyInput], Tensor]:
    """(blocks, logits): drafts more or less near the target."""
    generator = torch.Generator().manual_seed(random.randrange(2**40))
    lengths = [random.randrange(5) for _ in range(SESSIONS)]
    logits = torch.randn((sum(lengths) + SESSIONS, size), generator=generator)
    logits *= torch.tensor([random.choice((0.5, 2.0, 6.0)) for _ in range(len(logits))])[:, None]
    logits = logits.to(dtype)
    near = logits.float() + random.choice((0.0, 0.3, 2.0)) * torch.randn(logits.shape, generator=generator)
    limits = torch.tensor([random.choice((1, 8, 64, 128)) for _ in range(len(near))])
    rows = make_rows(torch.log_softmax(near, dim=1), torch.full((len(near),), 0.995), limits)
    picked = torch.multinomial(rows.weights.float(), 1, generator=generator)
    tokens = rows.ids.gather(1, picked)[:, 0].tolist()
    ids, weights = rows.ids.numpy(), rows.weights.numpy()
    sizes = (rows.weights > 0).sum(dim=1).tolist()
    inputs, at = [], 0
    for length in lengths:
        rule, sampling = random.choice(list(Rule)), sampling_of(random)
        span = range(at, at + length)
        bare = rule is Rule.COUPLED or sampling.greedy or random.random() < 0.1
        own = [] if bare else [(ids[i, : sizes[i]].astype("u4"), weights[i, : sizes[i]].astype("u4")) for i in span]
        inputs.append(
            VerifyInput(
                random.randrange(2**31), tokens[at : at + length], own, sampling, rule, random.randrange(2**64),
                counts_of(random),
            )
        )  # fmt: skip
        at += length + 1
    return inputs, logits


def sampling_of(random: Random, *, greedy: bool = True) -> Sampling:
    """Half of them with penalties or a bias."""
    temperatures = (0.3, 0.7, 1.0, 1.7)
    adjusted = random.random() < 0.5
    return Sampling(
        temperature=random.choice((0.0, *temperatures) if greedy else temperatures),
        top_k=random.choice((0, 0, 5, 50)),
        top_p=random.choice((1.0, 1.0, 0.95, 0.6)),
        min_p=random.choice((0.0, 0.0, 0.0, 0.05)),
        repetition_penalty=random.choice((1.0, 1.3, 0.8)) if adjusted else 1.0,
        presence_penalty=random.choice((0.0, 0.6)) if adjusted else 0.0,
        frequency_penalty=random.choice((0.0, 0.37, -0.2)) if adjusted else 0.0,
        logit_bias=random.choice(((), ((3, 1.5), (100, -2.0), (511, 4.0)))) if adjusted else (),
    )


def counts_of(random: Random) -> dict[int, int]:
    """Occurrences of a few ids."""
    return {random.randrange(512): random.randrange(1, 4) for _ in range(12)}


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of logits, all processes together")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--every", type=int, default=1, help="batches of which one is looked at closely")
    parser.add_argument("--seconds", type=float, default=600.0, help="no batch begins later")
    parser.add_argument("--vocabularies", type=int, nargs="+", default=list(VOCABULARIES))
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()

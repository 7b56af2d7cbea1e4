"""Accept / reject / resample of one step, and drafting, on a GPU: `python benchmarks/verify_kernel.py` prints JSON,
one object per shape and line.

Microseconds per step inside a CUDA graph, median; `warm_us`: the same logits again and again, `cold_us`: sets in turn
that together are several times the cache. 4 drafted tokens, rows of 64 ids, bfloat16 logits, temperature 0.7, laws like
a language model's. `bytes`: the logits, once; `share_of_copy`: those bytes over the cold time, as a share of what a
plain copy reaches in the same run. `reach`: the figure to reach. Peers: `verify_peers`; vLLM and FlashSpec are timed
where they can be imported (`pip install --no-deps --target FOLDER vllm flashspec`, then `PYTHONPATH=FOLDER`).

    python benchmarks/verify_kernel.py --shapes 1x128256 --no-peers
    TRITON_INTERPRET=1 python benchmarks/verify_kernel.py --device cpu --shapes 2x300   # does it run
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from graph_timing import copy_bandwidth, warm_and_cold
from torch import Tensor
from verify_inputs import LENGTH, ROWS, Step, make_step
from verify_peers import peers

from specmesh.kernels.compiled.draft_plan import DraftCapacity, DraftPlan, pack_rows
from specmesh.kernels.compiled.forms import Tuning
from specmesh.kernels.compiled.pack import pack
from specmesh.kernels.compiled.plan import Capacity, VerifyPlan
from specmesh.kernels.inputs import DraftInput, VerifyInput
from specmesh.runtime.types import Rule, Sampling

SHAPES = ("1x128256", "8x128256", "64x128256", "8x32000")
PLAIN = Sampling(temperature=0.7)
CUT = Sampling(temperature=0.7, top_p=0.95, top_k=50)
CASES: dict[str, tuple[Rule, Sampling]] = {
    "block": (Rule.BLOCK, PLAIN),
    "token": (Rule.TOKEN, PLAIN),
    "coupled": (Rule.COUPLED, PLAIN),
    "greedy": (Rule.BLOCK, Sampling(temperature=0.0)),
    "block_top_p_top_k": (Rule.BLOCK, CUT),
    "coupled_top_p_top_k": (Rule.COUPLED, CUT),
    "block_top_p": (Rule.BLOCK, Sampling(temperature=0.7, top_p=0.95)),
    "block_penalties": (
        Rule.BLOCK,
        Sampling(temperature=0.7, frequency_penalty=0.2, logit_bias=((5, 1.0), (900, 2.0))),
    ),
}
REACH = {"1x128256": 8.0, "8x128256": 12.0, "64x128256": 45.0, "8x32000": 8.0}
TIMES = {"block": 1.0, "token": 1.0, "coupled": 2.0, "block_top_p_top_k": 3.0}
"""By how much more than `REACH` a case may take; the others have no figure to reach."""


def main() -> None:
    """All shapes asked for."""
    options = _options()
    bandwidth = copy_bandwidth(options.device)
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "none"
    about = {"gpu": gpu, "torch": torch.__version__, "copy_tb_per_second": round(bandwidth / 1e12, 2)}
    for shape in options.shapes:
        batch, size = (int(number) for number in shape.split("x"))
        step = make_step(batch, size, options.device, PLAIN)
        results = kernel_times(shape, step, options.cases, bandwidth)
        if not options.no_peers:
            results += peer_times(step)
        if not options.no_drafts:
            results += draft_times(step)
        print(json.dumps({**about, "shape": shape, "drafted": LENGTH, "results": results}), flush=True)


def kernel_times(shape: str, step: Step, cases: list[str], bandwidth: float) -> list[dict[str, Any]]:
    """The kernel by rule."""
    results = []
    for name in cases:
        rule, sampling = CASES[name]
        inputs = step.inputs(rule, sampling)
        if sampling.has_penalties:
            inputs = [replace(item, token_counts=dict.fromkeys(range(0, 2000, 7), 1)) for item in inputs]
        times = warm_and_cold(verify_work(step, inputs), step.sets)
        moved = step.sets[0].numel() * step.sets[0].element_size()
        results.append(
            {
                "op": "verify", "case": name, **times,
                "reach": reach_of(shape, name), "launches": 2 if name == "greedy" else 3,
                "bytes": moved, "share_of_copy": round(moved / (1e-6 * times["cold_us"]) / bandwidth, 3),
            }
        )  # fmt: skip
    return results


def reach_of(shape: str, case: str) -> float | None:
    """Microseconds, where there is a figure."""
    return REACH[shape] * TIMES[case] if shape in REACH and case in TIMES else None


def verify_work(step: Step, inputs: list[VerifyInput], tuning: Tuning | None = None) -> Callable[[Tensor], None]:
    """Launches of a plan that holds the batch."""
    rows = step.batch * ROWS
    numbers = len(pack(inputs, step.vocabulary_size, rows).numbers)
    capacity = Capacity(rows, step.batch, numbers)
    plan = VerifyPlan(step.draft.device, step.vocabulary_size, capacity, tuning)
    form = plan.load(inputs)
    return lambda logits: plan.launch(logits, form)


def peer_times(step: Step) -> list[dict[str, Any]]:
    """The others, plain and with top-p and top-k."""
    results: list[dict[str, Any]] = []
    for name, sampling in (("plain", PLAIN), ("top_p_top_k", CUT)):
        for peer, work in peers(step, sampling).items():
            what: dict[str, Any] = {"op": "verify", "peer": peer, "case": name}
            if isinstance(work, str):
                results.append(what | {"not_run": work})
                continue
            try:
                results.append(what | warm_and_cold(work, step.sets))
            except Exception as error:  # noqa: BLE001 - another's code: that it fails is a result
                torch.cuda.synchronize()
                results.append(what | {"not_run": f"{type(error).__name__}: {error}"[:300]})
    return results


def draft_times(step: Step) -> list[dict[str, Any]]:
    """One drafted token per session: rows of up to 128 ids or 0.995 of the mass, and the token."""
    results = []
    for name, sampling in (("plain", PLAIN), ("temperature_1", Sampling()), ("top_p_top_k", CUT)):
        items = [DraftInput(100, 0, sampling, Rule.BLOCK, b, None, 128, 0.995) for b in range(step.batch)]
        numbers, form = pack_rows(items, step.vocabulary_size, step.batch)
        plan = DraftPlan(step.draft.device, step.vocabulary_size, DraftCapacity(step.batch, form.room, len(numbers)))
        form = plan.load(items)
        sets = [logits[: step.batch] for logits in step.sets]
        times = warm_and_cold(lambda logits, plan=plan, form=form: plan.launch(logits, form), sets)  # type: ignore[misc]
        results.append({"op": "draft_step", "case": name, **times, "launches": 3})
    return results


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), help="sessions x vocabulary")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-drafts", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""The verifier's step with the verify kernel and with the reference: `python benchmarks/verify_in_step.py` prints JSON.

An 8B-shaped target (random weights, forwards as CUDA graphs; `--layers`: only so many of its 32), context 512, four
drafted tokens under BLOCK at temperature 0.7, rows of 64 ids. `forward_ms`: the forward alone, awaited; `kernel_ms`:
with `ops.verify` behind it, packing and the copy to the host included; `reference_ms`: with the logits copied to the
CPU and the torch reference.
Medians of the wall clock.

    python benchmarks/verify_in_step.py --device cpu --shape tiny --sessions 1 2   # does it run
"""

import argparse
import json
from collections.abc import Callable, Sequence

import torch
from verifier_step import SHAPES, awaited_ms, build, spans_of
from verify_inputs import ROWS, make_step

from specmesh.kernels.inputs import VerifyInput
from specmesh.kernels.ops import verify
from specmesh.model.blocks import blocks_for
from specmesh.model.paged import PagedModel
from specmesh.model.spans import Span
from specmesh.runtime.types import Rule, Sampling

CONTEXT = 512
SESSIONS = (1, 8, 64)
SAMPLING = Sampling(temperature=0.7)


def main() -> None:
    """All numbers of sessions."""
    options = _options()
    SHAPES[options.shape]["num_hidden_layers"] = options.layers or SHAPES[options.shape]["num_hidden_layers"]
    model = build(options.shape, options.device)
    model.allocate_cache(max(options.sessions) * blocks_for(CONTEXT + ROWS))
    model.warm_up(ROWS * max(options.sessions))
    results = []
    for sessions in options.sessions:
        spans = list(spans_of(CONTEXT, sessions))
        size = SHAPES[options.shape]["vocab_size"]
        inputs = make_step(sessions, size, options.device, SAMPLING).inputs(Rule.BLOCK, SAMPLING)
        works = works_of(model, spans, inputs, size)
        rounds = (options.rounds, options.rounds, max(3, options.rounds // (2 * sessions)))
        times = {name: awaited_ms(work, count) for (name, work), count in zip(works.items(), rounds, strict=True)}
        results.append({"sessions": sessions, **times})
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "none"
    print(
        json.dumps(
            {
                "gpu": gpu,
                "shape": options.shape,
                "layers": SHAPES[options.shape]["num_hidden_layers"],
                "context": CONTEXT,
                "results": results,
            },
            indent=1,
        )
    )


def works_of(
    model: PagedModel, spans: Sequence[Span], inputs: Sequence[VerifyInput], size: int
) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    return {
        "forward_ms": lambda: model.forward(spans),
        "kernel_ms": lambda: verify(model.forward(spans), inputs, vocabulary_size=size),
        "reference_ms": lambda: verify(model.forward(spans).cpu(), inputs, vocabulary_size=size),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--shape", default="8b", choices=sorted(SHAPES))
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--sessions", nargs="+", type=int, default=list(SESSIONS))
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Microseconds of work on a GPU as it runs inside a CUDA graph, and what a plain copy reaches there."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

COLD_BYTES = 260_000_000
"""Of all sets together: several times the cache."""
WARM_STEPS = 20
REPLAYS = 25


def microseconds(step: Callable[[Tensor], object], sets: Sequence[Tensor]) -> float:
    """Per step, median over replays of a graph that holds one step after the other, one per set in turn.

    On the CPU, where there are no graphs, of one call: to see that it runs.
    """
    if sets[0].device.type != "cuda":
        started = time.perf_counter()
        step(sets[0])
        return 1e6 * (time.perf_counter() - started)
    replay = recorded(lambda: [step(logits) for logits in sets])
    times = []
    for _ in range(REPLAYS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        stop.record()
        stop.synchronize()
        times.append(1e3 * start.elapsed_time(stop) / len(sets))
    return float(median(times))


def recorded(work: Callable[[], object]) -> Callable[[], None]:
    """The work as a graph; it is run once before, so that all is compiled and allocated."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
    torch.cuda.synchronize()
    for _ in range(2):
        graph.replay()
    return graph.replay


def warm_and_cold(step: Callable[[Tensor], object], sets: Sequence[Tensor]) -> dict[str, float]:
    """`warm_us`: one set again and again; `cold_us`: every set once per replay."""
    return {
        "warm_us": round(microseconds(step, [sets[0]] * WARM_STEPS), 2),
        "cold_us": round(microseconds(step, sets), 2),
    }


def copy_bandwidth(device: str) -> float:
    """Bytes read and written per second by a plain copy of 4 GiB (on the CPU of 2 MiB), the best of five."""
    size = 2**32 if device == "cuda" else 2**21
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    if device != "cuda":
        return 2 * size / (1e-6 * microseconds(target.copy_, [source]))
    times = []
    for _ in range(6):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        times.append(1e-3 * start.elapsed_time(stop))
    return float(2 * size / min(times[1:]))

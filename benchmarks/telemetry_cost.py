"""What telemetry costs: CPU time of a step with it off, on (1 % of the requests traced) and with every request traced.

One mesh of each kind, side by side, of table models, whose steps are as cheap as steps get: telemetry's share is at its
largest. Rounds are interleaved: a round's load goes to every kind before the next begins, in turns of order; the
ratio of each kind to the one without is taken within the round, its confidence interval over the rounds. The collector
takes spans in this process, whose time does not count. Two meshes without telemetry say how well the method measures:
their ratio should be 1. `seams` is what the places where telemetry is asked cost when there is none, measured alone.
Prints JSON.
"""

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
from measure import machine
from step_overhead import Quiet, mesh_config, wait_for_draft, write_tables

from specmesh.client import AsyncClient
from specmesh.command.mesh import Mesh, running_mesh
from specmesh.command.mesh_config import MeshConfig
from specmesh.router.committed import CommittedStep
from specmesh.router.policies.interface import PLAIN
from specmesh.router.watching import NO_WATCH

OFF, OFF_AGAIN, SAMPLED, ALL = "off", "off_again", "one_percent", "every_request"
KINDS = {OFF: None, OFF_AGAIN: None, SAMPLED: 0.01, ALL: 1.0}
TOKENS = 60
"""Of a request: some 20 steps, all of which have spans of their own when the request is traced."""
STUDENT_95 = {5: 2.571, 7: 2.365, 9: 2.262, 11: 2.201, 15: 2.131, 19: 2.093, 29: 2.045, 39: 2.023}
"""97.5th percentile by degrees of freedom; in between the next lower one is taken, which is the wider interval."""
TARGETS = {"off": 0.01, "one_percent": 0.02}


class Collector(grpc.GenericRpcHandler):
    """Takes whatever is exported."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        """Every method; an empty message is the right answer to all of them."""
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")


def config_of(target: Path, draft: Path, endpoint: str, ratio: float | None) -> MeshConfig:
    """The mesh of `step_overhead`, with telemetry in every service unless `ratio` is None."""
    config = mesh_config(target, draft, 0.0)
    if ratio is None:
        return config
    telemetry = {"telemetry": {"otlp_endpoint": endpoint, "prometheus_port": 0, "sample_ratio": ratio}}
    telemetry["telemetry"]["prometheus_host"] = "127.0.0.1"
    drafts = tuple(draft.model_copy(update=telemetry) for draft in config.drafts)
    return MeshConfig(verifier=config.verifier | telemetry, drafts=drafts, router=config.router | telemetry)


class Measured:
    """A running mesh, its processes, and the CPU time of its steps."""

    def __init__(self, mesh: Mesh, client: AsyncClient, processes: Sequence[psutil.Process]) -> None:
        self.mesh = mesh
        self.client = client
        self.processes = processes
        self.num_steps = 0

    async def load(self, requests: int, at_a_time: int) -> float:
        """CPU seconds per step of so many requests."""
        before, steps = self._cpu(), self.num_steps
        for _ in range(requests // at_a_time):
            await asyncio.gather(*(self._request() for _ in range(at_a_time)))
        return (self._cpu() - before) / (self.num_steps - steps)

    async def _request(self) -> None:
        generation = await self.client.generate(
            [1, 2, 3], max_output_tokens=TOKENS, temperature=0.0, ignore_eos=True, unary=True
        )
        assert generation.finished is not None
        self.num_steps += generation.finished.usage.step_count

    def _cpu(self) -> float:
        return sum(cpu_seconds(process) for process in self.processes)


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of all threads; by the scheduler's own count where there is one, which is finer than a clock tick."""
    try:
        threads = list(Path(f"/proc/{process.pid}/task").glob("*/schedstat"))
        seconds = sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
        return seconds or float(sum(process.cpu_times()[:2]))
    except (OSError, IndexError):
        return float(sum(process.cpu_times()[:2]))


async def start(stack: AsyncExitStack, config: MeshConfig) -> Measured:
    """A mesh that is warm."""
    before = {child.pid for child in psutil.Process().children()}
    mesh = await stack.enter_async_context(running_mesh(config, Quiet()))
    processes = [child for child in psutil.Process().children() if child.pid not in before]
    client = await stack.enter_async_context(AsyncClient(mesh.address, timeout=600.0))
    await wait_for_draft(client)
    measured = Measured(mesh, client, processes)
    await measured.load(16, 8)
    return measured


async def measure(configs: dict[str, MeshConfig], rounds: int, requests: int, at_a_time: int) -> dict[str, list[float]]:
    """CPU seconds per step by kind, one figure a round."""
    found: dict[str, list[float]] = {kind: [] for kind in configs}
    async with AsyncExitStack() as stack:
        meshes = {kind: await start(stack, config) for kind, config in configs.items()}
        for number in range(rounds):
            order = list(meshes)
            shift = number % len(order)
            for kind in order[shift:] + order[:shift]:
                found[kind].append(await meshes[kind].load(requests, at_a_time))
            sys.stderr.write(f"round {number + 1} of {rounds}\n")
    return found


def compare(values: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Mean ratio to `base` minus 1, round by round, with its 95 % confidence interval."""
    ratios = [value / other - 1.0 for value, other in zip(values, base, strict=True)]
    degrees = len(ratios) - 1
    quantile = STUDENT_95[max(each for each in STUDENT_95 if each <= degrees)]
    half = quantile * statistics.stdev(ratios) / math.sqrt(len(ratios))
    mean = statistics.fmean(ratios)
    return {"mean": round(mean, 4), "low": round(mean - half, 4), "high": round(mean + half, 4)}


def seams_seconds(steps: int = 200_000) -> float:
    """CPU seconds that one step spends in the router's seams when nobody watches."""
    session: Any = None
    began = time.process_time()
    for _ in range(steps):
        with NO_WATCH.step(session) as watched:
            with watched.draft(PLAIN):
                pass
            with watched.verify(asked=True):
                pass
            watched.done(CommittedStep(session, session, PLAIN, session, session, None, session))
    return (time.process_time() - began) / steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="at least 6")
    parser.add_argument("--requests", type=int, default=48, help="of one kind in a round")
    parser.add_argument("--at-a-time", type=int, default=8)
    options = parser.parse_args()
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Collector(),))
    endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        target, draft = write_tables(Path(folder))
        configs = {kind: config_of(target, draft, endpoint, ratio) for kind, ratio in KINDS.items()}
        found = asyncio.run(measure(configs, options.rounds, options.requests, options.at_a_time))
    server.stop(None)
    per_step, seams = statistics.median(found[OFF]), seams_seconds()
    report = {
        "machine": machine(),
        "rounds": options.rounds,
        "cpu_ms_per_step": {kind: round(statistics.median(values) * 1e3, 4) for kind, values in found.items()},
        "more_than_off": {kind: compare(found[kind], found[OFF]) for kind in (OFF_AGAIN, SAMPLED, ALL)},
        "seams_us_per_step": round(seams * 1e6, 3),
        "seams_share_of_step": round(seams / per_step, 5),
        "targets": TARGETS,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

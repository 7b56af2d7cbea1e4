"""What telemetry costs: CPU time of a step with it off, on (1 % of the requests traced) and with every request traced.

A mesh of table models, whose steps are as cheap as steps get, so telemetry's share is at its largest. It is all in this
process, over real gRPC, so that the CPU time is the process's own; and it is one mesh, whose telemetry is switched
between requests, so that nothing else differs. A slice is a request or a few; slices of all kinds are interleaved in
random order and compared within their round. The trimmed mean of the differences over that of a step has a bootstrap
interval over the rounds. `off_again` is one off against the other: its difference says how well the method measures.

With telemetry both unsampled and traced requests are measured; what 1 % costs follows from these two. It is nearly all
of it the unsampled ones', so a round has two slices of them and two of off, and some rounds have a traced one. `seams`
is what the places where telemetry is asked cost when there is none. The collector is a process of its own, whose time
does not count. Prints JSON.
"""

import argparse
import asyncio
import copy
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from measure import OthersWork, machine
from scipy.stats import trim_mean
from step_overhead import wait_for_draft, write_tables
from switched_mesh import Switch, SwitchedTelemetry, switched_mesh

from specmesh.client import AsyncClient
from specmesh.router.committed import CommittedStep
from specmesh.router.policies.interface import PLAIN
from specmesh.router.watching import NO_WATCH
from specmesh.runtime.telemetry.config import TelemetryConfig
from specmesh.runtime.telemetry.instruments import Registry
from specmesh.runtime.telemetry.names import TELEMETRY_DROPPED
from specmesh.runtime.telemetry.otlp import OtlpExporter
from specmesh.runtime.telemetry.setup import on_loop
from specmesh.runtime.telemetry.spans import Tracer

OFF, UNSAMPLED, TRACED = "off", "unsampled", "traced"
TWICE = 2
"""Slices of off and of unsampled in a round."""
TRACED_EVERY = 4
"""Rounds of which one has a traced slice."""
SAMPLED_SHARE = 0.01
TOKENS = 150
"""Of a request: some 50 steps, all of which have spans of their own when the request is traced."""
RESAMPLES = 2000
TRIMMED = 0.1
TARGETS = {"off": 0.01, "one_percent": 0.02}


class Collector(grpc.GenericRpcHandler):
    """Takes whatever is exported."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        """Every method; an empty message is the right answer to all of them."""
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")


def collect() -> None:
    """Be the collector until standard input ends."""
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Collector(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


def telemetry_to(endpoint: str) -> tuple[SwitchedTelemetry, OtlpExporter]:
    """As a service has it that traces what its callers want traced; spans leave often, so that a slice has its own."""
    registry = Registry()
    exporter = OtlpExporter(
        TelemetryConfig(otlp_endpoint=endpoint, spans_seconds=0.2),
        {"service.name": "specmesh"},
        collect=on_loop(asyncio.get_running_loop(), registry.collect),
        start_ns=registry.start_ns,
        dropped=registry.counter(TELEMETRY_DROPPED),
    )
    return SwitchedTelemetry(registry, Tracer(exporter.add, 0.0), Switch()), exporter


class Slices:
    """Takes slices of load of each kind."""

    def __init__(self, untraced: AsyncClient, traced: AsyncClient, switch: Switch, exporter: OtlpExporter) -> None:
        self._clients = {OFF: untraced, UNSAMPLED: untraced, TRACED: traced}
        self._switch = switch
        self._exporter = exporter

    async def take(self, kind: str, at_a_time: int) -> float:
        """CPU seconds of a step, all services together."""
        client = self._clients[kind]
        self._switch.on = kind in (UNSAMPLED, TRACED)
        began = time.process_time()
        steps = await asyncio.gather(*(_request(client) for _ in range(at_a_time)))
        while self._exporter.num_waiting:  # noqa: ASYNC110  another thread sends them
            await asyncio.sleep(0.002)
        return (time.process_time() - began) / sum(steps)


async def _request(client: AsyncClient) -> int:
    generation = await client.generate(
        [1, 2, 3], max_output_tokens=TOKENS, temperature=0.0, ignore_eos=True, unary=True
    )
    assert generation.finished is not None
    return generation.finished.usage.step_count


async def measure(folder: Path, endpoint: str, policy: str, seconds: float, at_a_time: int) -> dict[str, list[float]]:
    """CPU seconds per step by kind, one figure a round."""
    target, draft = write_tables(folder)
    telemetry, exporter = telemetry_to(endpoint)
    router = {"policy": {"name": policy, "settings": {"fixed_length": 4} if policy == "fixed" else {}}}
    keeping_up = asyncio.create_task(telemetry.measured.keep_up())
    async with switched_mesh(target, draft, telemetry, router) as address:
        context = f"00-{'ab' * 16}-{'cd' * 8}-01"
        untraced = AsyncClient(address, timeout=600.0)
        async with untraced, AsyncClient(address, timeout=600.0, tracer=context) as traced:
            await wait_for_draft(untraced)
            exporter.start()
            slices = Slices(untraced, traced, telemetry.switch, exporter)
            await rounds(slices, seconds / 10, at_a_time)  # warms up
            gc.freeze()  # as a verifier does: what loads leave behind would be looked through in somebody's slice
            found = await rounds(slices, seconds, at_a_time)
    await asyncio.to_thread(exporter.stop, 5.0)
    keeping_up.cancel()
    return found


async def rounds(slices: Slices, seconds: float, at_a_time: int) -> dict[str, list[float]]:
    """Slices in the order of their rounds; within one, kinds come in random order."""
    found: dict[str, list[float]] = {OFF: [], UNSAMPLED: [], TRACED: []}
    shuffle, count = random.Random(0).shuffle, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        order = [OFF, UNSAMPLED] * TWICE + ([TRACED] if count % TRACED_EVERY == 0 else [])
        shuffle(order)
        for kind in order:
            found[kind].append(await slices.take(kind, at_a_time))
        count += 1
    return found


class Share:
    """By how much `values` exceed `base`, pair by pair, as a share of `base`; with its bootstrap over the pairs.

    A tenth of the pairs is left out at either end: those in which something else took the caches.
    """

    def __init__(self, values: np.ndarray, base: np.ndarray) -> None:
        draw, pairs = np.random.default_rng(1), np.array([values, base])
        chosen = draw.integers(0, len(base), (RESAMPLES, len(base)))
        self.mean = _share(pairs)
        self.again = np.array([_share(pairs[:, each]) for each in chosen])

    def mixed_with(self, other: "Share", weight: float) -> "Share":
        """So much of the other in place of this."""
        mixed = copy.copy(self)
        mixed.mean = (1 - weight) * self.mean + weight * other.mean
        mixed.again = (1 - weight) * self.again + weight * other.again
        return mixed

    def report(self) -> dict[str, float]:
        """With its 95 % interval."""
        low, high = np.quantile(self.again, [0.025, 0.975])
        return {"mean": round(self.mean, 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def _share(pairs: np.ndarray) -> float:
    return float(trim_mean(pairs[0] - pairs[1], TRIMMED) / trim_mean(pairs[1], TRIMMED))


def more_than_off(found: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """What each kind takes more than off."""
    offs, unsampled = (np.reshape(found[kind], (-1, TWICE)) for kind in (OFF, UNSAMPLED))
    base = offs.mean(axis=1)
    of_unsampled = Share(unsampled.mean(axis=1), base)
    of_traced = Share(np.array(found[TRACED]), base[::TRACED_EVERY])
    return {
        "off_again": Share(offs[:, 1], offs[:, 0]).report(),
        UNSAMPLED: of_unsampled.report(),
        "one_percent": of_unsampled.mixed_with(of_traced, SAMPLED_SHARE).report(),
        "every_request": of_traced.report(),
    }


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
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--at-a-time", type=int, default=1, help="requests of a slice, side by side")
    parser.add_argument("--policy", default="fixed")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        collect()
        return
    command = [sys.executable, __file__, "--collect"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as collector,
    ):
        assert collector.stdout is not None
        endpoint = f"http://127.0.0.1:{collector.stdout.readline().strip()}"
        others = OthersWork()
        found = asyncio.run(measure(Path(folder), endpoint, options.policy, options.seconds, options.at_a_time))
        busy = others.cores()
        collector.communicate()
    per_step, seams = float(trim_mean(found[OFF], TRIMMED)), seams_seconds()
    report = {
        "machine": machine(),
        "cores_of_others": round(busy, 3),
        "policy": options.policy,
        "at_a_time": options.at_a_time,
        "rounds": len(found[OFF]) // TWICE,
        "cpu_ms_per_step": {kind: round(float(trim_mean(values, TRIMMED)) * 1e3, 4) for kind, values in found.items()},
        "more_than_off": more_than_off(found),
        "seams_us_per_step": round(seams * 1e6, 3),
        "seams_share_of_step": round(seams / per_step, 5),
        "targets": TARGETS,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

"""Router and gRPC time per step, both hops, with table models: TARGETS.md, "router + gRPC time per step".

Verifier, draft and router are processes of their own. The time of a step that is neither the target's forward nor its
verify kernel is overhead: router, both wires, queues, and the table draft's look-up of four tokens. With many sessions
a step also waits for the others' turns, so `ms_of_wall_clock_per_step` says what a step costs when the machine is full.
`bare_echo_ms` is what two bare streams cost in the same run: the floor.
Prints JSON.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from bare_echo import bare_echo_ms
from measure import machine, percentiles

from specmesh.client import AsyncClient, Generation
from specmesh.command.mesh import running_mesh
from specmesh.command.mesh_config import DraftProcess, MeshConfig
from specmesh.command.processes import ServiceEnded
from specmesh.command.report import PARTS, milliseconds
from specmesh.draft.ngram_file import NgramTable, law_to_levels, save_table
from specmesh.runtime.modules import module_of
from specmesh.v1 import router_service_pb2 as pb

VOCABULARY = 16
BLOCK_LENGTH = 4
ENGINE_MS = (0.0, 5.0)
SESSIONS = (1, 100, 1000)
STEPS_IN_ALL = 4000
WARM_UP_TOKENS = 1000
TARGET_MS = {0.0: 0.6, 5.0: 1.3}
TARGET_IDLE_MB = 150


class Quiet:
    """Watches a mesh start and says nothing."""

    def starting(self, name: str) -> None:
        """Nothing."""

    def line(self, name: str, text: str) -> None:
        """Nothing."""

    def ready(self, name: str, address: str) -> None:
        """Nothing."""

    def missed(self, name: str, text: str) -> None:
        """Without a draft there is nothing to measure. Raises `ServiceEnded`."""
        raise ServiceEnded(text)


def write_tables(folder: Path) -> tuple[Path, Path]:
    """A random target and a draft that is much like it."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2.0, size=(VOCABULARY,) * 3).astype(np.float32)
    target, draft = folder / "target.npz", folder / "draft.npz"
    np.savez(target, logits=logits, vocabulary_size=VOCABULARY)
    near = np.exp(logits.astype(np.float64) + rng.normal(scale=0.3, size=logits.shape))
    save_table(draft, NgramTable(law_to_levels(near / near.sum(-1, keepdims=True)), VOCABULARY))
    return target, draft


def mesh_config(target: Path, draft: Path, engine_ms: float) -> MeshConfig:
    """One arm, always asked for four tokens."""
    return MeshConfig(
        verifier={
            "model": f"table:{target}",
            "table": {"delay_ms": engine_ms, "max_context_tokens": 16384},
            "engine": {"max_verify_rows": 8192, "max_prefill_tokens": 8192},
        },
        drafts=(DraftProcess.model_validate({"pool": "table", "kind": "table", "drafter": {"path": str(draft)}}),),
        router={
            "sessions": {"hold_out": 0},
            "policy": {"name": "fixed", "settings": {"fixed_length": BLOCK_LENGTH}},
            "limits": {"max_sessions": 2048},
            "drafts": {"block_deadline_ms": 10_000.0, "min_deadline_ms": 10_000.0},
        },
    )


async def measure(client: AsyncClient, sessions: int, temperature: float) -> dict[str, Any]:
    """So many generations at the same time, their steps summed up."""
    tokens = max(STEPS_IN_ALL // sessions, 8) * 2
    began, cpu_before = time.perf_counter(), cpu_seconds()
    generations = await asyncio.gather(*(generate(client, tokens, temperature) for _ in range(sessions)))
    seconds, cpu_after = time.perf_counter() - began, cpu_seconds()
    steps = [step for generation in generations for step in generation.steps[1:]]
    if not any(step.drafted_count for step in steps):
        raise RuntimeError("no step was drafted for: the figures would be of plain decoding")
    return {
        "sessions": sessions,
        "sampling": "greedy" if temperature == 0 else "rows",
        "steps": len(steps),
        "overhead_ms": percentiles([overhead(step) for step in steps]),
        "p50_ms_by_part": {part: percentiles([part_ms(step, part) for step in steps])["p50"] for part in PARTS},
        "ms_of_wall_clock_per_step": round(seconds * 1e3 / len(steps), 4),
        "ms_of_cpu_per_step": {
            name: round((after - cpu_before[name]) * 1e3 / len(steps), 4) for name, after in cpu_after.items()
        },
        "drafted_share": sum(step.drafted_count > 0 for step in steps) / len(steps),
    }


async def generate(client: AsyncClient, tokens: int, temperature: float) -> Generation:
    """One session; its output comes in one message, so that this process takes little of the machine."""
    return await client.generate(
        [1, 2, 3], max_output_tokens=tokens, temperature=temperature, ignore_eos=True, step_reports=True, unary=True
    )


def part_ms(step: pb.StepReport, part: str) -> float:
    """One part of a step's time."""
    return milliseconds(getattr(step.timing, part))


def overhead(step: pb.StepReport) -> float:
    """What the mesh adds to the model's own time, in ms."""
    return part_ms(step, "total") - part_ms(step, "forward") - part_ms(step, "verify")


async def run_engine(config: MeshConfig, engine_ms: float, sessions: list[int]) -> tuple[list[dict[str, Any]], float]:
    """All loads on one mesh, and the idle memory of its router in MB."""
    async with running_mesh(config, Quiet()) as mesh:
        idle = router_memory()
        async with AsyncClient(mesh.address, timeout=600.0) as client:
            await wait_for_draft(client)
            await generate(client, WARM_UP_TOKENS, 1.0)  # the table draft keeps the rows it has made
            results = [
                {"engine_ms": engine_ms, **await measure(client, count, temperature)}
                for count in sessions
                for temperature in (0.0, 1.0)
            ]
    return results, idle


async def wait_for_draft(client: AsyncClient) -> None:
    """Until the router has found its only arm ready."""
    async with asyncio.timeout(30):
        while not any(arm.state == pb.ARM_STATE_READY for arm in await client.list_drafts()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def services() -> dict[str, psutil.Process]:
    """The mesh among this process's children, by module."""
    found = {}
    for child in psutil.Process(os.getpid()).children():
        if module := module_of(child.cmdline()):
            found[module.removeprefix("specmesh.")] = child
    return found


def router_memory() -> float:
    """Resident MB of the router."""
    return float(services()["router"].memory_info().rss) / 1e6


def cpu_seconds() -> dict[str, float]:
    """CPU time of every service so far, and of this process, which is the client."""
    processes = services() | {"client": psutil.Process(os.getpid())}
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="+", default=list(SESSIONS))
    parser.add_argument("--engine-ms", type=float, nargs="+", default=list(ENGINE_MS))
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    idle = 0.0
    with tempfile.TemporaryDirectory() as folder:
        target, draft = write_tables(Path(folder))
        for engine_ms in options.engine_ms:
            config = mesh_config(target, draft, engine_ms)
            sys.stderr.write(f"engine of {engine_ms} ms, {options.sessions} sessions\n")
            found, idle = asyncio.run(run_engine(config, engine_ms, options.sessions))
            results += found
    report = {
        "machine": machine(),
        "bare_echo_ms": bare_echo_ms(),
        "router_idle_mb": {"measured": round(idle, 1), "target": TARGET_IDLE_MB},
        "target_p50_ms_at_1_session": {str(key): value for key, value in TARGET_MS.items()},
        "results": results,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

"""A verifier process with an 8B-shaped random target, over gRPC: its ticks beside the forwards that they hold.

`start`: seconds from the process's start to each thing that it logs, and to ready: warm-up with the sizes that a
verifier has by default. `peer`: one peer, in this process, that answers each answer of N sessions with a block of 4
random tokens; `tick_ms` is the time between two of its frames, `forward_ms` and `verify_ms` what the verifier says of
it, `between_ms` the rest; `apart_ms` is the time between two answers of one session. `prompt`: that time of 8 sessions,
and what it is while a prompt of 4,000 tokens comes in, with the `ticks` of that time. `mesh`: the steps of generations
through a router, with prompt lookup as the draft, which is asked for 4 tokens a step. Medians in milliseconds. Prints
JSON.

    python benchmarks/verifier_service.py
    python benchmarks/verifier_service.py --device cpu --shape tiny --context 40 --prompt 200   # does it run
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import grpc.aio
import numpy as np
import torch
from step_overhead import overhead, part_ms
from tensor_parallel import saved
from verifier_step import SHAPES

from specmesh.client import AsyncClient, Generation
from specmesh.command.mesh import running_mesh
from specmesh.command.mesh_config import DraftProcess, MeshConfig
from specmesh.command.processes import ServiceEnded
from specmesh.command.report import PARTS
from specmesh.runtime import wire
from specmesh.runtime.contract import PEER_METADATA_KEY
from specmesh.runtime.streams import FrameQueue, channel
from specmesh.runtime.types import Block, Rule, Sampling, SessionSpec
from specmesh.v1 import verifier_service_pb2 as pb
from specmesh.v1.verifier_service_pb2_grpc import VerifierServiceStub

PEER = "benchmark"
DRAFTED = 4
CHUNK_BESIDE = 8
FAVOURED = 8
"""Ids that the mesh's requests are biased to, so that a lookup finds what to propose in a random model's text."""


class Start:
    """Watches a mesh start, and keeps when what happened."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.verifier = ""
        self.seconds: list[tuple[float, str]] = []

    def starting(self, name: str) -> None:
        """A process was started."""

    def line(self, name: str, text: str) -> None:
        """What the verifier logs until it serves."""
        if name == "verifier" and not self.verifier:
            self._note(text)

    def ready(self, name: str, address: str) -> None:
        """It serves."""
        if name == "verifier":
            self._note("ready")
            self.verifier = address

    def missed(self, name: str, text: str) -> None:
        """Without a draft there is nothing to measure. Raises `ServiceEnded`."""
        raise ServiceEnded(text)

    def _note(self, what: str) -> None:
        self.seconds.append((round(time.monotonic() - self._began, 2), what))


class Peer:
    """Sessions that are always in flight."""

    def __init__(self, address: str, vocabulary: int, context: int) -> None:
        self._channel = channel(address)
        self._stub: Any = VerifierServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._call: Any = self._stub.Verify(metadata=((PEER_METADATA_KEY, PEER),))
        self._vocabulary, self._context = vocabulary, context
        self._random = np.random.default_rng(0)
        self._next_id = 0
        self._outgoing: FrameQueue[pb.VerifyRequestEntry] = FrameQueue()
        self._writing = asyncio.create_task(self._write())
        self._answered: dict[int, float] = {}
        self.apart: list[float] = []
        """Milliseconds between two answers of one session."""

    async def close(self) -> None:
        """End the stream, and its sessions with it."""
        self._outgoing.close()
        await self._writing
        self._call.cancel()
        await self._channel.close()

    async def open(self, num_tokens: int) -> int:
        """A session with a random prompt; its first block is sent as well."""
        self._next_id += 1
        prompt = tuple(self._random.integers(0, self._vocabulary, num_tokens).tolist())
        spec = SessionSpec(
            session_id=self._next_id, peer=PEER, context=prompt, prompt_length=num_tokens, rule=Rule.COUPLED,
            sampling=Sampling(temperature=0.7), verify_key=self._next_id, draft_key=self._next_id,
            max_output_tokens=100_000,
        )  # fmt: skip
        await self._stub.Open(iter(list(wire.verify_open_messages(spec))))
        self._outgoing.put(self._block(self._next_id, num_tokens))
        return self._next_id

    def _block(self, session_id: int, position: int) -> pb.VerifyRequestEntry:
        tokens = self._random.integers(0, self._vocabulary, DRAFTED).tolist()
        return wire.block_to_entry(session_id, Block(position, tuple(tokens)))

    async def _write(self) -> None:
        """As a router does: all that is there as one frame."""
        async for entries in self._outgoing.frames():
            await self._call.write(pb.VerifyRequest(entries=entries))

    async def frame(self) -> pb.VerifyResponse:
        """The next frame; every session in it gets its next block."""
        frame: pb.VerifyResponse = await self._call.read()
        if frame is grpc.aio.EOF or any(entry.HasField("error") for entry in frame.entries):
            raise RuntimeError("a session has failed")
        now = time.perf_counter()
        for entry in frame.entries:
            if (before := self._answered.get(entry.session_id)) is not None:
                self.apart.append(1e3 * (now - before))
            self._answered[entry.session_id] = now
            self._outgoing.put(self._block(entry.session_id, entry.position + len(entry.token_ids)))
        return frame

    async def sessions(self, count: int) -> list[int]:
        """So many new sessions, past their prompts."""
        opened = [await self.open(self._context) for _ in range(count)]
        unseen = set(opened)
        while unseen:
            unseen -= {entry.session_id for entry in (await self.frame()).entries}
        return opened

    def end(self, sessions: Sequence[int]) -> None:
        """Close them; what is still answered is dropped."""
        for session_id in sessions:
            self._outgoing.put(pb.VerifyRequestEntry(session_id=session_id, close=True))

    async def ticks(self, rounds: int) -> dict[str, float]:
        """What `rounds` ticks take."""
        self.apart.clear()
        began, before, gaps, frames = time.perf_counter(), time.perf_counter(), list[float](), list[pb.VerifyResponse]()
        for _ in range(rounds):
            frames.append(await self.frame())
            gaps.append(1e3 * (time.perf_counter() - before))
            before = time.perf_counter()
        seconds = before - began
        timings = [frame.entries[0].timing for frame in frames]
        tick, forward = median(gaps), median(timing.forward_ns / 1e6 for timing in timings)
        verify = median(timing.verify_ns / 1e6 for timing in timings)
        answers = sum(len(frame.entries) for frame in frames)
        return {
            "tick_ms": round(tick, 3), "forward_ms": round(forward, 3), "verify_ms": round(verify, 3),
            "between_ms": round(tick - forward - verify, 3), "longest_ms": round(max(gaps), 3),
            "apart_ms": round(median(self.apart), 3),
            "sessions_in_a_tick": median(frame.entries[0].batch_size for frame in frames),
            "verified_tokens_per_second": round(answers * (DRAFTED + 1) / seconds),
        }  # fmt: skip

    async def beside_prompt(self, num_tokens: int, rounds: int) -> dict[str, Any]:
        """How long the others' tokens are apart before a long prompt comes and while it comes in."""
        others = await self.sessions(CHUNK_BESIDE)
        alone = await self.ticks(rounds)
        self.apart.clear()
        opening = asyncio.create_task(self.open(num_tokens))
        newest, before, ticks = 1 + max(others), time.perf_counter(), list[dict[str, float]]()
        while newest not in self._answered:
            first = (await self.frame()).entries[0]
            now = time.perf_counter()
            verify_ms = round(first.timing.verify_ns / 1e6, 2)
            ticks.append({"ms": round(1e3 * (now - before), 2), "verify_ms": verify_ms, "in_it": first.batch_size})
            before = now
        self.end([*others, await opening])
        return {
            "prompt_tokens": num_tokens, "sessions": CHUNK_BESIDE, "apart_ms": alone["apart_ms"],
            "apart_with_chunk_ms": round(median(self.apart), 3), "longest_with_chunk_ms": round(max(self.apart), 3),
            "ticks": ticks,
        }  # fmt: skip


async def by_peer(address: str, options: argparse.Namespace) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """All loads of one peer; each load has a stream of its own."""
    vocabulary = SHAPES[options.shape]["vocab_size"]
    results = []
    for count in options.sessions:
        peer = Peer(address, vocabulary, options.context)
        opened = await peer.sessions(count)
        first = await peer.ticks(10)
        results.append(
            {"sessions": count, **await peer.ticks(options.rounds), "longest_of_first_10_ms": first["longest_ms"]}
        )
        peer.end(opened)
        await peer.close()
    peer = Peer(address, vocabulary, options.context)
    prompt = await peer.beside_prompt(options.prompt, options.rounds)
    await peer.close()
    return results, prompt


async def by_mesh(address: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """So many generations at a time through the router; the first step of each, which has the prompt, left out."""
    async with AsyncClient(address, timeout=300.0) as client:
        results = []
        for count in options.sessions:
            began = time.perf_counter()
            generations = await asyncio.gather(*(generate(client, index, options) for index in range(count)))
            steps = [step for generation in generations for step in generation.steps[1:]]
            parts = {part: round(median(part_ms(step, part) for step in steps), 3) for part in PARTS}
            results.append({
                "sessions": count, "steps": len(steps), "ms_by_part": parts,
                "overhead_ms": round(median(overhead(step) for step in steps), 3),
                "drafted": round(sum(step.drafted_count for step in steps) / len(steps), 2),
                "steps_per_second": round(len(steps) / (time.perf_counter() - began)),
            })  # fmt: skip
        return results


async def generate(client: AsyncClient, index: int, options: argparse.Namespace) -> Generation:
    """One text of the favoured ids."""
    prompt = np.random.default_rng(index).integers(1, 1 + FAVOURED, options.context).tolist()
    return await client.generate(
        prompt, max_output_tokens=2 * options.rounds, temperature=1.0, ignore_eos=True, step_reports=True, unary=True,
        logit_bias=dict.fromkeys(range(1, 1 + FAVOURED), 100.0),
    )  # fmt: skip


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One mesh, all loads."""
    verifier = {
        "model": str(folder), "device": options.device, "dtype": "bfloat16", "kv_memory": options.kv_memory,
        "log": {"level": "INFO"},
    }  # fmt: skip
    config = MeshConfig(
        verifier=verifier,
        drafts=(DraftProcess.model_validate({"pool": "lookup", "kind": "lookup"}),),
        router={
            "sessions": {"hold_out": 0},
            "policy": {"name": "fixed", "settings": {"fixed_length": DRAFTED}},
            "drafts": {"block_deadline_ms": 10_000.0, "min_deadline_ms": 10_000.0},
        },
    )
    start = Start()
    async with running_mesh(config, start) as mesh:
        peer, prompt = await by_peer(start.verifier, options)
        sys.stderr.write(json.dumps({"start": start.seconds, "peer": peer, "prompt": prompt}) + "\n")
        steps = await by_mesh(mesh.address, options)
    return {"start": start.seconds, "peer": peer, "prompt": prompt, "mesh": steps}


def main() -> None:
    """Measure and print."""
    options = _options()
    folder = saved(options, None)
    if options.device == "cuda":
        torch.cuda.empty_cache()
    report = asyncio.run(measure(folder, options))
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "none"
    print(json.dumps({"gpu": gpu, "torch": torch.__version__, "shape": options.shape, **report}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=200, help="ticks that are timed")
    parser.add_argument("--kv-memory", default="16GiB")
    return parser.parse_args()


if __name__ == "__main__":
    main()

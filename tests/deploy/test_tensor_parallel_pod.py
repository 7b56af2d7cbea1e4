"""A pod whose verifier divides its model: the rendered command starts two ranks, on CPUs here, and ends both."""

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest
from helm_charts import needs_tools, render
from model_builders import plain_model, save_model, tiny_config
from pod_processes import Node, PodProcess, deployed, watchdog
from verifier_parts import make_spec
from verifier_server import Peer

from specmesh.runtime.types import FinishReason

pytestmark = [needs_tools, pytest.mark.slow]
NAME = "mesh-specmesh-verifier-pair"
VALUES: dict[str, Any] = {
    "models": {"target": {"pvc": {"claim": "weights", "path": "target"}}},
    # On GPUs `gpu: {count: 2}` says it; a CPU has no number of devices.
    "verifiers": [{
        "name": "pair", "model": "target", "dtype": "float32", "kvMemory": "4MiB", "config": {"tensor_parallel": 2},
    }],
    "drafts": [],
}  # fmt: skip


async def test_the_rendered_command_starts_two_ranks_that_generate_and_end(tmp_path: Path) -> None:
    """With a read-only root and no root user; the probes are those of the pod."""
    save_model(tmp_path / "weights" / "target", plain_model(tiny_config(vocab_size=102)))
    node = Node(tmp_path, render(VALUES), {}, {"weights": tmp_path / "weights"})
    address = node.give_address(f"{NAME}.ai.svc")
    spec, _ = deployed(node.objects, NAME)
    pod = PodProcess(node, NAME, spec, address, ("SPECMESH_VERIFIER__SERVER__HOST", address))
    with watchdog(200, pod):
        try:
            await pod.ready()
            [follower] = psutil.Process(pod.pid).children()
            async with Peer(f"{address}:50051") as peer:
                output, reason = await peer.generate(make_spec([3, 4, 5], max_output_tokens=12), 2)
            assert (len(output), reason) == (12, FinishReason.LENGTH)
            status, _ = await asyncio.to_thread(pod.end)
            assert status == 0, pod.log()
            assert not follower.is_running()
        finally:
            pod.close()

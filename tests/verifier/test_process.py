"""The verifier as a process: slow loads, long forwards, drains, and peers that are killed."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mesh_processes import Service
from verifier_parts import COUNTING, make_spec
from verifier_server import Peer, serving

from specmesh.runtime import wire
from specmesh.runtime.config import load_config
from specmesh.runtime.errors import Draining
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.types import Block
from specmesh.verifier.__main__ import FLAGS, EngineFailed, serve_until_done
from specmesh.verifier.backend import Verified, Work
from specmesh.verifier.config import VerifierConfig
from specmesh.verifier.paged import PagedBackend
from specmesh.verifier.target import TableTarget, save_table

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def table(tmp_path: Path) -> str:
    save_table(tmp_path / "counting.npz", COUNTING)
    return f"table:{tmp_path / 'counting.npz'}"


def unused_port() -> int:
    """A port that was free a moment ago: health is asked before a ready line could say one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def health(channel: grpc.aio.Channel) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service="specmesh.v1.VerifierService")
    return int((await stub.Check(request, wait_for_ready=True)).status)


async def test_health_answers_during_a_load_and_during_a_forward(table: str, tmp_path: Path) -> None:
    """C31."""
    port = unused_port()
    settings: dict[str, Any] = {"model": table, "table__delay_ms": 1500, "server__port": port}
    with Service("verifier", tmp_path, **settings) as service:
        async with Peer(f"127.0.0.1:{port}") as early:
            seen = []
            while not seen or seen[-1] != SERVING:
                seen.append(await health(early.channel))
            assert seen[0] == NOT_SERVING
        async with Peer(await asyncio.to_thread(lambda: service.address)) as peer:
            await peer.open(make_spec([3]))
            step = asyncio.ensure_future(peer.step(1, 1))
            slowest = 0.0
            while not step.done():
                started = time.monotonic()
                assert await health(peer.channel) == SERVING
                slowest = max(slowest, time.monotonic() - started)
                await asyncio.sleep(0.02)
            assert slowest < 0.2
            assert (await step).token_ids == (4,)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "table:/nowhere.npz"}, "model: cannot load the table"),
        ({"model": "table:BAD"}, "model: cannot load the table"),
        ({"kv_memory": 100}, "kv_memory: one block of 16 tokens takes 128 bytes"),
        ({"engine__max_block_length": 600}, "engine.max_block_length"),
        ({"modle": "x"}, "modle: no such key"),
    ],
)
def test_a_failed_load_is_one_clear_line_and_a_status(
    table: str, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    """C31."""
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"PK\x03\x04 not a table")
    given = {key: f"table:{bad}" if value == "table:BAD" else value for key, value in settings.items()}
    with Service("verifier", tmp_path, **({"model": table} | given)) as service:
        assert service.process.wait(30) == 2
        (line,) = service.log().splitlines()
        assert line.startswith("specmesh verifier: ")
        assert said in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--kv-memory", "much"], "kv_memory: could not parse value"),
        (["--max-sessions", "0"], "engine.max_sessions: Input should be greater than or equal to 1"),
        (["--max-context", "1"], "max_context_tokens: Input should be greater than or equal to 2"),
        (["--prefill-chunk", "none"], "engine.max_prefill_tokens: Input should be a valid integer"),
        (["--quantization", "int3"], "quantization: Input should be 'nf4' or 'int8' (from --quantization)"),
        (["--dtype", "float7"], "dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16' (from --dtype)"),
        (["--dtype", "float32", "--quantization", "int8"], "dtype: float32 cannot be kept with quantization int8"),
        (["--kv-memory", "1MiB", "--set", "kv_memory=2MiB"], "kv_memory: given twice, by --kv-memory and --set"),
    ],
)
def test_a_flag_that_cannot_be_used_ends_the_process_by_its_name(tmp_path: Path, flags: list[str], said: str) -> None:
    command = [sys.executable, "-m", "specmesh.verifier", "--model", str(tmp_path), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


def test_flags_are_shown_and_set_the_keys_that_they_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specmesh.verifier", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    shown = " ".join(done.stdout.split())
    for flag in FLAGS:
        assert f"{flag.name} VALUE" in shown
        assert f"(key `{flag.key}`)" in shown
    texts = {
        "kv_memory": "2MiB",
        "engine.max_sessions": "7",
        "max_context_tokens": "99",
        "engine.max_prefill_tokens": "5",
    }
    given = {flag.name: (flag.key, texts[flag.key]) for flag in FLAGS if flag.key in texts}
    config = load_config(VerifierConfig, path=None, environ={}, overrides={"model": "demo"}, prefix="", flags=given)
    assert (config.kv_memory, config.engine.max_sessions) == (2 << 20, 7)
    assert (config.max_context_tokens, config.engine.max_prefill_tokens) == (99, 5)


async def test_a_drain_delivers_all_that_was_promised(table: str, tmp_path: Path) -> None:
    """C32: SIGTERM at token 5 of 50: all 50 arrive, new calls UNAVAILABLE, exit 0 within the drain time."""
    with Service("verifier", tmp_path, model=table, server__drain_seconds=20) as service:
        async with Peer(await asyncio.to_thread(lambda: service.address)) as peer:
            await peer.open(make_spec([3], max_output_tokens=50))
            output: list[int] = []
            while len(output) < 50:
                output += (await peer.step(1, 1 + len(output))).token_ids
                if len(output) == 5:
                    service.process.terminate()
                    while not peer.draining:
                        output += (await peer.step(1, 1 + len(output))).token_ids
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await peer.open(make_spec([3], session_id=2))
                    assert isinstance(from_rpc_error(caught.value), Draining)
            assert output == [(4 + index) % 32 for index in range(50)]
        assert await asyncio.to_thread(service.process.wait, 10) == 0


PEER_THAT_WAITS = """
import asyncio, sys
from verifier_parts import make_spec
from verifier_server import Peer

async def main():
    async with Peer(sys.argv[1], "doomed") as peer:
        for session_id in range(5):
            await peer.open(make_spec([3], peer="doomed", session_id=session_id, lease_ms=500))
            await peer.step(session_id, 1)
        print("open", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_sessions_of_a_killed_peer_end_with_their_lease(table: str, tmp_path: Path) -> None:
    """C22: kill -9."""
    async with serving(TableTarget(COUNTING)) as verifier:
        environment = {"PYTHONPATH": str(Path(__file__).parent.parent)}
        doomed = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PEER_THAT_WAITS, verifier.address, stdout=subprocess.PIPE, env=environment
        )
        assert doomed.stdout is not None
        assert await doomed.stdout.readline() == b"open\n"
        assert verifier.engine.num_sessions == 5
        doomed.kill()
        started = time.monotonic()
        async with asyncio.timeout(10):
            await verifier.engine.wait_empty()
        assert time.monotonic() - started < 1.0
        await doomed.wait()
        assert verifier.blocks_in_use == 0


class BrokenBackend(PagedBackend):
    """Answers with fewer outcomes than it was asked for: a fault of the engine's own, not of one tick's sessions."""

    def verify(self, batch: Sequence[Work]) -> Verified:
        return Verified(())


async def test_an_engine_that_dies_takes_the_process_with_it() -> None:
    async with serving(TableTarget(COUNTING), backend=BrokenBackend) as verifier, Peer(verifier.address) as peer:
        ending = asyncio.ensure_future(serve_until_done(verifier.server, verifier.service, verifier.engine))
        await peer.open(make_spec([3]))
        await peer.send(wire.block_to_entry(1, Block(1)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await peer.call.read()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "engine has failed" in str(caught.value.details())
        with pytest.raises(EngineFailed):
            await ending

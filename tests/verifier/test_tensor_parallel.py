"""A model over two processes of this machine (gloo on CPUs, NCCL on GPUs): the same texts, and never a hang."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc.aio
import psutil
import pytest
import torch
from mesh_processes import Service
from model_builders import plain_model, random_ids, save_model, tiny_config
from transformers import LlamaForCausalLM
from verifier_parts import make_spec
from verifier_server import Peer

from specmesh.runtime.types import FinishReason

pytestmark = pytest.mark.slow
WIDTH = 102
"""Of the head: even, as transformers 5.17 asks of it. The last column is padding."""
NUM_TOKENS = 24
PROMPTS = (random_ids(5, seed=1), random_ids(40, seed=2))
END_SECONDS = 20.0
"""A lost rank is noticed at once; what is left is the orderly end, which is cut after 5 s."""


@pytest.fixture(scope="module")
def plain() -> LlamaForCausalLM:
    return plain_model(tiny_config(vocab_size=WIDTH))


@pytest.fixture(scope="module")
def folder(plain: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", plain)


def service(folder: Path, tmp_path: Path, **settings: Any) -> Service:
    given = {"model": folder, "dtype": "float32", "kv_memory": "4MiB", "tensor_parallel": 2, "log__level": "INFO"}
    return Service("verifier", tmp_path, **(given | settings))


def greedy(plain: LlamaForCausalLM, prompt: list[int]) -> list[int]:
    output = plain.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0, suppress_tokens=[WIDTH - 1],
    )  # fmt: skip
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids


async def text_of(peer: Peer, session_id: int, prompt: list[int], drafts: list[int]) -> list[int]:
    """Steps of four drafted tokens, some right and some wrong."""
    await peer.open(make_spec(prompt, session_id=session_id, max_output_tokens=NUM_TOKENS))
    output: list[int] = []
    while True:
        block = [*drafts[len(output) : len(output) + 3], 7][:4]
        result = await peer.step(session_id, len(prompt) + len(output), block)
        output += result.token_ids
        if result.finish_reason is not None:
            assert result.finish_reason is FinishReason.LENGTH
            return output


async def plain_steps(peer: Peer, position: int) -> None:
    while True:
        position += len((await peer.step(1, position)).token_ids)


def followers_of(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children() if "specmesh.verifier" in child.cmdline()]


async def test_two_ranks_give_the_texts_of_one_and_end_together(
    plain: LlamaForCausalLM, folder: Path, tmp_path: Path
) -> None:
    """Golden: transformers' own greedy texts, two sessions at once, blocks with right and wrong tokens."""
    truths = [greedy(plain, prompt) for prompt in PROMPTS]
    with service(folder, tmp_path) as verifier:
        async with Peer(await asyncio.to_thread(lambda: verifier.address)) as peer:
            first = asyncio.create_task(text_of(peer, 1, PROMPTS[0], truths[0]))
            assert await first == truths[0]
            assert await text_of(peer, 2, PROMPTS[1], truths[1]) == truths[1]
        followers = followers_of(verifier.process)
        assert len(followers) == 1
        assert await asyncio.to_thread(verifier.terminate) == 0
        assert not followers[0].is_running()
        assert "has ended" not in verifier.log()
        assert "over 2 ranks a small model equals the whole one" in verifier.log()


@pytest.mark.parametrize("idle", [True, False])
async def test_a_killed_rank_ends_the_verifier_with_the_reason(folder: Path, tmp_path: Path, idle: bool) -> None:
    with service(folder, tmp_path) as verifier:
        async with Peer(await asyncio.to_thread(lambda: verifier.address)) as peer:
            await peer.open(make_spec(PROMPTS[0], max_output_tokens=100_000))
            await peer.step(1, len(PROMPTS[0]))
            [follower] = followers_of(verifier.process)
            started = time.monotonic()
            follower.kill()
            if not idle:
                with pytest.raises(grpc.aio.AioRpcError):
                    await plain_steps(peer, len(PROMPTS[0]) + 1)
            assert await asyncio.to_thread(verifier.process.wait, END_SECONDS) == 70
            assert time.monotonic() - started < END_SECONDS
        lines = [json.loads(line) for line in verifier.log().splitlines() if line.startswith("{")]
        assert any(line["message"].startswith("rank 1 of the model has ended with status -9") for line in lines)


async def test_a_rank_that_hangs_ends_the_verifier_after_its_timeout(folder: Path, tmp_path: Path) -> None:
    with service(folder, tmp_path, rank_timeout_seconds=2) as verifier:
        async with Peer(await asyncio.to_thread(lambda: verifier.address)) as peer:
            await peer.open(make_spec(PROMPTS[0]))
            [follower] = followers_of(verifier.process)
            follower.send_signal(signal.SIGSTOP)
            step = asyncio.create_task(peer.step(1, len(PROMPTS[0])))
            assert await asyncio.to_thread(verifier.process.wait, END_SECONDS) == 70
            with pytest.raises(grpc.aio.AioRpcError):
                await step
        assert "have not finished a tick within 2 s" in verifier.log()
        # It does not outlive the first.
        follower.send_signal(signal.SIGCONT)
        await asyncio.to_thread(psutil.wait_procs, [follower], END_SECONDS)
        assert not follower.is_running()


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs (NCCL)"),
            ],
        ),
    ],
)
def test_every_draft_over_two_ranks_gives_the_text_of_generate(device: str, tmp_path: Path) -> None:
    """By gloo, and by NCCL both launched one by one and recorded. Each rank has half of the heads."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    visible = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    paths = os.pathsep.join([str(here.parent), str(here), *filter(None, sys.path)])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths} | visible
    done = subprocess.run(
        [*command, str(here.parent / "rank_texts.py"), str(tmp_path / "model"), device],
        env=environment, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wanted = {"texts": 27, "equal": 27, "local_heads": [4, 2]}
    assert found == [{"recorded": recorded, **wanted} for recorded in ((False, True) if device == "cuda" else (False,))]


def test_every_rank_is_told_all_that_the_first_does() -> None:
    """The sizes to warm up for among it, and a message longer than any before."""
    script = Path(__file__).parent.parent / "rank_calls.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert first == second
    assert first[:4] == [["allocate_cache", 7], ["warm_up", 512, 256], ["warm_up", 64, 0], ["copy_block", 3, 5]]
    assert [len(tokens) for tokens, *_ in first[4][1]] == [2, 5000]


def test_heads_that_do_not_divide_end_both_processes_with_the_numbers(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "odd", plain_model(tiny_config(vocab_size=WIDTH, num_key_value_heads=1)))
    flags = ["--model", str(folder), "--dtype", "float32", "--tensor-parallel", "2", "--kv-memory", "4MiB"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "specmesh.verifier", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2, done.stderr
    assert "its 1 key-value heads cannot be divided among 2 ranks" in done.stderr


def test_torchrun_starts_the_ranks_as_well(folder: Path, tmp_path: Path) -> None:
    """The address comes from rank 0 alone."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    flags = ["--model", str(folder), "--dtype", "float32", "--tensor-parallel", "2", "--kv-memory", "4MiB"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-m", "specmesh.verifier", *flags], stdout=subprocess.PIPE, stderr=log, env=environment
        )
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "ready"
        finally:
            process.terminate()
            process.wait(END_SECONDS)
            process.stdout.close()

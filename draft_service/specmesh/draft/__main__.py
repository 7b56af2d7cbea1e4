"""`python -m specmesh.draft`: one draft service."""

import specmesh.runtime.environment  # noqa: F401  first: gRPC and torch read it when imported

# isort: split
import asyncio
import sys
import time
from functools import partial

from specmesh.draft.config import DraftConfig
from specmesh.draft.drafter import Drafter, EndsProcess, make_drafter
from specmesh.draft.engine import DraftEngine
from specmesh.draft.metrics import BlockMetrics, observe_draft
from specmesh.draft.runner import InlineRunner, Runner, ThreadRunner
from specmesh.draft.service import DraftServicer
from specmesh.runtime.config import ConfigError
from specmesh.runtime.contract import DRAFT_SERVICE
from specmesh.runtime.errors import MeshError
from specmesh.runtime.launch import in_own_thread, run_service
from specmesh.runtime.pinning import check_pinned
from specmesh.runtime.serving import MeshServer, announce_ready
from specmesh.runtime.telemetry.setup import Telemetry, open_telemetry
from specmesh.v1 import draft_service_pb2_grpc as pb_grpc


async def serve(config: DraftConfig) -> None:
    """Serve until told to stop. Health answers NOT_SERVING while the draft loads. Raises `ConfigError`."""
    async with open_telemetry("draft", config.telemetry) as telemetry:
        await _serve_with(config, telemetry)


async def _serve_with(config: DraftConfig, telemetry: Telemetry) -> None:
    registry = telemetry.registry
    server = MeshServer(config.server, [DRAFT_SERVICE], telemetry)
    watch = BlockMetrics(registry) if registry is not None else None
    unread = config.server.max_unread_seconds
    servicer = DraftServicer(time.monotonic, watch, telemetry.tracer, max_unread_seconds=unread)
    pb_grpc.add_DraftServiceServicer_to_server(servicer, server.grpc)  # type: ignore[no-untyped-call]
    await server.start()
    try:
        drafter = await in_own_thread(partial(_load, config))
        engine = DraftEngine(drafter, config.limits, config.stopping, time.monotonic)
        if registry is not None:
            observe_draft(registry, engine, drafter.info)
        runner = InlineRunner(engine) if drafter.inline else ThreadRunner(engine)
        servicer.attach(runner, drafter.info, config.limits.max_block_length)
        if isinstance(drafter, EndsProcess):
            drafter.end_after(partial(_wait_until_written, servicer, asyncio.get_running_loop()))
        server.set_serving()
        announce_ready(server.address)
        await _serve(server, servicer, runner)
    finally:
        await server.stop(0)


async def _serve(server: MeshServer, servicer: DraftServicer, runner: Runner) -> None:
    """Until a signal, or until the engine fails."""
    serving = asyncio.ensure_future(server.serve_until_signalled(servicer.drain))
    await asyncio.wait({serving, runner.failed}, return_when=asyncio.FIRST_COMPLETED)
    if runner.failed.done():
        runner.failed.result()
    await serving
    await runner.stop()


def _wait_until_written(servicer: DraftServicer, loop: asyncio.AbstractEventLoop) -> None:
    """For the engine's thread."""
    asyncio.run_coroutine_threadsafe(servicer.written(), loop).result()


def _load(config: DraftConfig) -> Drafter:
    try:
        drafter = make_drafter(config.kind, config.drafter)
    except MeshError as error:
        raise ConfigError(error.message) from error
    check_pinned(config.model_digest, drafter.info.model_digest)
    return drafter


if __name__ == "__main__":
    sys.exit(run_service("draft", DraftConfig, serve))

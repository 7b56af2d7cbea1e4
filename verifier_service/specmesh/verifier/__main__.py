"""`python -m specmesh.verifier`: one verifier, from the first health answer to the end of its drain."""

import specmesh.runtime.environment  # noqa: F401  first: gRPC and torch read it when imported

# isort: split
import asyncio
import gc
import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from specmesh.model.errors import RanksLost
from specmesh.model.place import Place, leave
from specmesh.runtime.contract import VERIFIER_SERVICE
from specmesh.runtime.errors import MeshError
from specmesh.runtime.launch import Flag, in_own_thread, run_service
from specmesh.runtime.serving import CLOSING_SECONDS, MeshServer, announce_ready
from specmesh.runtime.telemetry.setup import Telemetry, open_telemetry
from specmesh.v1.verifier_service_pb2_grpc import add_VerifierServiceServicer_to_server
from specmesh.verifier.config import VerifierConfig
from specmesh.verifier.engine import Engine
from specmesh.verifier.followers import SHARING, Followers, given_place, start_followers
from specmesh.verifier.metrics import MeasuredBackend, observe_engine
from specmesh.verifier.service import Served, VerifierService

if TYPE_CHECKING:
    from specmesh.verifier.loading import Loaded

_log = logging.getLogger(__name__)

ENGINE_FAILED_STATUS = 70
FLAGS = (
    Flag("--model", "model", "a directory, a GGUF file, a hub name, demo, or table:PATH.npz"),
    Flag("--quantization", "quantization", "nf4 or int8: weights in 4 or 8 bits, by bitsandbytes"),
    Flag("--dtype", "dtype", "auto, float32, bfloat16 or float16"),
    Flag("--kv-memory", "kv_memory", 'memory of the cache, e.g. "40GiB"'),
    Flag("--max-sessions", "engine.max_sessions", "sessions open at once; others wait"),
    Flag("--max-context", "max_context_tokens", "tokens of the longest context"),
    Flag("--tensor-parallel", "tensor_parallel", "processes of this machine that share the model, one a device"),
    Flag("--prefill-chunk", "engine.max_prefill_tokens", "prompt tokens in one tick, over all sessions"),
)


class EngineFailed(Exception):
    """The engine's own loop has died; what is left can only be started anew."""


async def serve(config: VerifierConfig) -> None:
    """Listen, load, serve, drain. Raises `ConfigError` and `EngineFailed`.

    With `tensor_parallel` the processes behind the first only share the model.
    """
    place = given_place(config)
    if place is not None and place.rank > 0:
        await in_own_thread(partial(_share, config, place))
        return
    with start_followers(config, place) as followers:
        async with open_telemetry("verifier", config.telemetry) as telemetry:
            await _serve(config, telemetry, followers)


async def _serve(config: VerifierConfig, telemetry: Telemetry, followers: Followers) -> None:
    registry = telemetry.registry
    server = MeshServer(config.server, [VERIFIER_SERVICE], telemetry)
    service = VerifierService(config.limits, server.draining, telemetry.tracer)
    add_VerifierServiceServicer_to_server(service, server.grpc)  # type: ignore[no-untyped-call]
    await server.start()
    try:
        loaded = await in_own_thread(partial(_load, config, followers.place))
        # What a load leaves behind stays: looking through it again and again would stop ticks for tens of milliseconds.
        gc.freeze()
        backend = loaded.backend if registry is None else MeasuredBackend(loaded.backend, registry)
        engine = Engine(backend, config.engine)
        followers.on_lost = engine.give_up
        engine.start()
        if registry is not None:
            observe_engine(registry, engine, loaded.info)
        service.serve(Served(engine, loaded.info, loaded.tokenizer))
        server.set_serving()
        announce_ready(server.address)
        await serve_until_done(server, service, engine)
        await asyncio.to_thread(followers.send_home, loaded.end)
    finally:
        await server.stop(0)


def _load(config: VerifierConfig, place: Place | None) -> "Loaded":
    # Imported here: torch alone takes longer than a health check may wait.
    from specmesh.verifier.loading import load

    try:
        return load(config, place)
    except (RanksLost, RuntimeError) as error:
        if place is None:
            raise
        _log.exception("the ranks could not load the model together")
        raise EngineFailed(str(error)) from error


def _share(config: VerifierConfig, place: Place) -> None:
    from specmesh.verifier.loading import share_model

    share_model(config, place)


async def serve_until_done(server: MeshServer, service: VerifierService, engine: Engine) -> None:
    """Until a signal and the end of the drain. Raises `EngineFailed` at once when that happens."""
    serving = asyncio.ensure_future(server.serve_until_signalled(engine.wait_empty))
    draining = asyncio.ensure_future(_drain_engine(server, engine))
    failed = asyncio.ensure_future(engine.failed.wait())
    try:
        await asyncio.wait({serving, failed}, return_when=asyncio.FIRST_COMPLETED)
        if engine.failed.is_set():
            service.fail(MeshError("the engine has failed; this verifier is going away"))
            await server.stop(CLOSING_SECONDS)
            raise EngineFailed("the engine has failed")
        await serving
        await engine.stop()
    finally:
        for task in (serving, draining, failed):
            task.cancel()


async def _drain_engine(server: MeshServer, engine: Engine) -> None:
    """Refuse at once what waits for memory; `wait_empty` lets the others finish."""
    await server.draining.wait()
    engine.drain()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status of the service. A process that shares a model does not return."""
    try:
        status = run_service("verifier", VerifierConfig, serve, arguments, FLAGS)
    except EngineFailed:
        status = ENGINE_FAILED_STATUS
    except Exception:
        if not SHARING.is_set():
            raise
        _log.exception("the verifier has failed")
        status = 1
    if SHARING.is_set():
        leave(status)
    return status


if __name__ == "__main__":
    sys.exit(main())

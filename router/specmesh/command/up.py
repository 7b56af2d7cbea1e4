"""`specmesh up`: a whole mesh on this machine until it is told to stop or cannot go on."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from rich.console import Console

from specmesh.client import SpecMeshError
from specmesh.command.demo_assets import demo_model
from specmesh.command.mesh import Mesh, running_mesh
from specmesh.command.mesh_check import check_mesh, listening_fault, mesh_given
from specmesh.command.mesh_config import DEFAULT_ADDRESS, MeshConfig, mesh_toml
from specmesh.command.processes import ServiceEnded
from specmesh.command.views import start_view
from specmesh.runtime.config import ConfigError, ServerConfig, validated


async def serve_mesh(config: MeshConfig, console: Console, on_ready: Callable[[Mesh], None]) -> None:
    """Raises `ServiceEnded` when the verifier or the router ends by itself."""
    async with started_mesh(config, console, show_log=True) as mesh, stop_signal() as stop:
        on_ready(mesh)
        end = asyncio.ensure_future(mesh.first_end())
        asked = asyncio.ensure_future(stop.wait())
        await asyncio.wait({end, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if end.done():
            raise end.result()
        end.cancel()
        console.print("draining; Ctrl-C again ends it at once")


@asynccontextmanager
async def started_mesh(config: MeshConfig, console: Console, *, show_log: bool) -> AsyncIterator[Mesh]:
    """A running mesh whose start was shown."""
    view = start_view(console, show_log=show_log)
    try:
        async with running_mesh(config, view) as mesh:
            view.close()
            yield mesh
    finally:
        view.close()


@asynccontextmanager
async def stop_signal() -> AsyncIterator[asyncio.Event]:
    """Set by the first SIGINT or SIGTERM; the next one acts as it did before."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        loop.call_soon_threadsafe(stop.set)

    def restore() -> None:
        for number in numbers:
            signal.signal(number, before[number])

    for number in numbers:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        restore()


def run_up(path: Path | None, port: int | None, dtype: str | None, console: Console) -> int:
    """`specmesh up`; its exit status."""

    async def main() -> None:
        config, router = check_mesh(mesh_given(path, port, dtype, os.environ), os.environ)
        require_free_port(router.server)
        if path is None:
            demo_model(console)
        await serve_mesh(config, console, lambda mesh: _say_ready(mesh, console))

    return run_guarded(main(), console)


def print_mesh(path: Path | None, port: int | None, dtype: str | None, output: TextIO, console: Console) -> int:
    """`specmesh up --print-config`; its exit status."""

    async def main() -> None:
        output.write(mesh_toml(validated(MeshConfig, mesh_given(path, port, dtype, os.environ))))

    return run_guarded(main(), console)


def require_free_port(server: ServerConfig) -> None:
    """Now and not after the models have loaded. Raises `ConfigError`."""
    host, port = server.host, server.port
    if fault := listening_fault(host, port):
        reason = f"{fault}. Is a mesh running already? --port 0 takes any free port."
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}")


def _say_ready(mesh: Mesh, console: Console) -> None:
    where = "" if mesh.address == DEFAULT_ADDRESS else f" --address {mesh.address}"
    console.print(
        f"ready at {mesh.address}; in another terminal: specmesh generate{where} 'Once upon a time'", soft_wrap=True
    )


def run_guarded(main: Coroutine[Any, Any, None], console: Console) -> int:
    """Run to the end; a failure is one message, and no process is left behind."""
    end_on_sigterm()
    try:
        asyncio.run(main)
    except (ConfigError, ServiceEnded, SpecMeshError) as error:
        console.print(f"specmesh: {_told(error)}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _told(error: Exception) -> str:
    if not isinstance(error, ConfigError) or len(error.faults) < 2:
        return str(error)
    return "\n  ".join([f"{len(error.faults)} mistakes in the configuration; nothing was started:", *error.faults])


def end_on_sigterm() -> None:
    """While a mesh starts, SIGTERM unwinds as Ctrl-C does, so that no process stays behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

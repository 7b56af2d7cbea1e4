"""A whole mesh on this machine: verifier and drafts, then the router that joins them.

When the verifier or the router ends, all end. A draft that ends, also while it loads, is said and missed, nothing more.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from specmesh.command.mesh_config import NOBODY, MeshConfig, flags
from specmesh.command.processes import Launch, ServiceEnded, ServiceProcess

R = TypeVar("R")
DRAFT_MODULE = "specmesh.draft"


class StartView(Protocol):
    """Who watches a mesh start."""

    def starting(self, name: str) -> None:
        """A process was started."""

    def line(self, name: str, text: str) -> None:
        """It logged a line."""

    def ready(self, name: str, address: str) -> None:
        """It serves."""

    def missed(self, name: str, text: str) -> None:
        """It ended, and the others go on."""


class Mesh:
    """Running processes and the address that clients use."""

    def __init__(self, view: StartView) -> None:
        self._view = view
        self._processes: list[ServiceProcess] = []
        self._missed: set[ServiceProcess] = set()
        self.address = ""

    async def start(self, config: MeshConfig) -> None:
        """All services; returns when the router serves. Raises `ServiceEnded`."""
        backends = [Launch("verifier", "specmesh.verifier", flags(config.verifier))]
        backends += [Launch(f"draft {draft.pool}", DRAFT_MODULE, flags(draft.settings)) for draft in config.drafts]
        verifier, *drafts = await self._start(backends)
        pools = [
            {"name": draft.pool, "addresses": [address], "trust": draft.trust}
            for draft, address in zip(config.drafts, drafts, strict=True)
        ]
        settings = config.router | {"verifiers": [verifier], "pools": pools}
        [self.address] = await self._start([Launch("router", "specmesh.router", flags(settings))])

    async def _start(self, launches: Sequence[Launch]) -> list[str]:
        """Start several at once and wait until all serve. Raises `ServiceEnded` when one does not come up."""
        processes = [ServiceProcess(launch, self._view.line) for launch in launches]
        for process in processes:
            await process.start()
            self._processes.append(process)
            self._view.starting(process.launch.name)
        return await self.unless_one_ends(self._all_ready(processes))

    async def _all_ready(self, processes: Sequence[ServiceProcess]) -> list[str]:
        return list(await asyncio.gather(*(self._ready(process) for process in processes)))

    async def _ready(self, process: ServiceProcess) -> str:
        address = await process.address
        if address != NOBODY:
            self._view.ready(process.launch.name, address)
        return address

    async def first_end(self) -> ServiceEnded:
        """Wait for the end of a process that the mesh cannot do without."""
        there = [process for process in self._processes if process not in self._missed]
        waiting = {asyncio.ensure_future(process.ended()): process for process in there}
        try:
            while True:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    process = waiting.pop(task)
                    if process.launch.module != DRAFT_MODULE:
                        return task.result()
                    self._miss(process, task.result())
        finally:
            for task in waiting:
                task.cancel()

    def _miss(self, process: ServiceProcess, end: ServiceEnded) -> None:
        self._missed.add(process)
        self._view.missed(process.launch.name, f"{end}\nthe mesh goes on without it")
        if not process.address.done():
            process.address.set_result(NOBODY)

    async def unless_one_ends(self, main: Coroutine[Any, Any, R]) -> R:
        """The result of `main`, which is cancelled when a process ends first. Raises `ServiceEnded`."""
        work = asyncio.ensure_future(main)
        end = asyncio.ensure_future(self.first_end())
        waiting: set[asyncio.Future[Any]] = {work, end}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise end.result()
        finally:
            work.cancel()
            end.cancel()
            await asyncio.wait(waiting)

    async def stop(self) -> None:
        """The router drains first: its sessions need the others to finish."""
        for process in reversed(self._processes):
            if process.launch.name == "router":
                await process.stop()
        await asyncio.gather(*(process.stop() for process in self._processes))

    def kill(self) -> None:
        """End every process at once."""
        for process in self._processes:
            process.kill()


@asynccontextmanager
async def running_mesh(config: MeshConfig, view: StartView) -> AsyncIterator[Mesh]:
    """A mesh for the time of a block; whatever ends the block, no process is left. Raises `ServiceEnded`."""
    mesh = Mesh(view)
    try:
        await mesh.start(config)
        yield mesh
        await mesh.stop()
    finally:
        mesh.kill()
        await mesh.stop()

"""Addresses of replicas from configuration and from names that are resolved again and again; they come and go."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from specmesh.runtime.address import NAME_PREFIX

_log = logging.getLogger(__name__)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) to addresses; raises OSError."""


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """Every address behind a name, as `ip:port`. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = {str(address[0]) for *_, address in found}
    return sorted(f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts)


class Runnable(Protocol):
    """A replica: runs until it is cancelled."""

    async def run(self) -> None:
        """Connect, serve, reconnect."""


R = TypeVar("R", bound=Runnable)


class Fleet(Generic[R]):
    """One replica, with one task, for each address that is there at the moment."""

    def __init__(
        self,
        addresses: Iterable[str],
        make: Callable[[str], R],
        *,
        interval: float,
        resolve: Resolve = resolve_name,
        removed: Callable[[R], None] | None = None,
    ) -> None:
        """`make` builds the replica of an address; `removed` hears of one whose address is gone."""
        self._fixed = frozenset(address for address in addresses if not address.startswith(NAME_PREFIX))
        self._names = {each: frozenset[str]() for each in addresses if each.startswith(NAME_PREFIX)}
        self._make = make
        self._interval = interval
        self._resolve = resolve
        self._removed = removed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.members: dict[str, R] = {}

    async def run(self) -> None:
        """Keep members and addresses in step until cancelled; then every member's task has ended."""
        try:
            while True:
                await self._look_up()
                await asyncio.sleep(self._interval)
        finally:
            await self._update(frozenset())

    async def _look_up(self) -> None:
        for name in self._names:
            host, _, port = name.removeprefix(NAME_PREFIX).rpartition(":")
            try:
                self._names[name] = frozenset(await self._resolve(host, int(port)))
            except OSError:
                # A name server that is away says nothing about the replicas: those known stay.
                _log.warning("name not resolved", extra={"service_name": name})
        await self._update(self._fixed.union(*self._names.values()))

    async def _update(self, addresses: frozenset[str]) -> None:
        gone = [address for address, task in self._tasks.items() if address not in addresses or task.done()]
        tasks = [self._tasks.pop(address) for address in gone]
        for task in tasks:
            task.cancel()
        for address, ended in zip(gone, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
            if isinstance(ended, Exception):
                _log.error("replica failed and starts over", extra={"address": address}, exc_info=ended)
            member = self.members.pop(address)
            if self._removed is not None:
                self._removed(member)
        for address in sorted(addresses - self._tasks.keys()):
            member = self.members[address] = self._make(address)
            self._tasks[address] = asyncio.create_task(member.run(), name=f"replica {address}")

"""Every mistake in the configuration of a mesh, said before anything is started."""

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specmesh.command.demo_assets import demo_mesh
from specmesh.command.mesh_config import DEFAULT_MODEL, DEFAULT_PORT, NOBODY, POOL_NAME, DraftProcess, MeshConfig
from specmesh.draft.config import DraftConfig
from specmesh.router.callers import Callers
from specmesh.router.config import RouterConfig
from specmesh.runtime.config import ConfigError, ConfigModel, validated
from specmesh.runtime.contract import DRAFT_SERVICE, ROUTER_SERVICE, VERIFIER_SERVICE
from specmesh.runtime.given import Given, Keys, value_at
from specmesh.runtime.serving import check_server
from specmesh.runtime.telemetry.setup import check_packages
from specmesh.verifier.config import VerifierConfig

FILLED_IN = ("verifiers", "pools")
ROUTER_PORT = ("router", "server", "port")
"""Whoever starts the mesh looks whether it is free, and knows what to do when it is not."""
EVERY_HOST = {"0.0.0.0", "::"}
"""Whoever listens there takes the port of every address. On Linux `::` is also every one of IPv4."""
Ports = dict[int, dict[str, str]]
"""By port, the keys that name it and their hosts."""
SERVICES: Mapping[type[ConfigModel], str] = {
    VerifierConfig: VERIFIER_SERVICE,
    DraftConfig: DRAFT_SERVICE,
    RouterConfig: ROUTER_SERVICE,
}


def mesh_given(path: Path | None, port: int | None, dtype: str | None, environ: Mapping[str, str]) -> Given:
    """The file's mesh or the demo's, with what flags say, each value with its origin. Raises `ConfigError`.

    Services see `environ` too, under this: a default is put in only where that says nothing.
    """
    given = Given()
    if path is not None:
        given.add_file(path)
    else:
        given.add_table(tree_of(demo_mesh()), "the demo's mesh")
    if "verifier" not in given.tree:
        given.add_table({"verifier": {}}, "the default")
        _put(given, ("verifier", "model"), _unless_said(environ, "VERIFIER", ("model",), DEFAULT_MODEL), "the default")
    if value_at(given.tree, ROUTER_PORT) is None:
        _put(given, ROUTER_PORT, _unless_said(environ, "ROUTER", ROUTER_PORT[1:], DEFAULT_PORT), "the default")
    _put(given, ("verifier", "dtype"), dtype, "--dtype")
    _put(given, ROUTER_PORT, port, "--port")
    return given


def _unless_said(environ: Mapping[str, str], service: str, keys: Keys, default: object) -> object:
    said = Given()
    said.add_environment(environ, f"SPECMESH_{service}")
    return default if value_at(said.tree, keys) is None else None


def _put(given: Given, keys: Keys, value: object, origin: str) -> None:
    """Where it can be; where the file has no section there, its mistake is told with all others."""
    sections = [keys[:length] for length in range(1, len(keys))]
    if value is not None and all(isinstance(value_at(given.tree, each), Mapping | None) for each in sections):
        given.add_table({keys[-1]: value}, origin, keys[:-1])


def listening_fault(host: str, port: int) -> str:
    """Why nothing can listen there now; empty when something can."""
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        with socket.create_server((host.strip("[]"), port), family=family):
            return ""
    except OSError as error:
        return str(error.strerror).partition(" (")[0]  # the address stands in parentheses behind it


def tree_of(config: MeshConfig) -> dict[str, Any]:
    """As a file would say it."""
    drafts = [{"pool": draft.pool, "trust": draft.trust, **draft.settings} for draft in config.drafts]
    return {"verifier": config.verifier, "drafts": drafts, "router": config.router}


def check_mesh(mesh: Given, environ: Mapping[str, str]) -> tuple[MeshConfig, RouterConfig]:
    """What to start, and what the router will make of it, its services apart; `environ` is what all services will see.

    Raises `ConfigError` with all mistakes of all sections.
    """
    faults: list[str] = []
    try:
        config = validated(MeshConfig, mesh)
    except ConfigError as error:
        faults += error.faults
    router = mesh.tree.get("router")
    for key in FILLED_IN:
        if isinstance(router, Mapping) and key in router:
            faults.append(mesh.fault(("router", key), "`specmesh up` fills it in"))
    ports: Ports = {}
    for section in _sections(mesh, environ):
        faults += section.faults(ports)
    if faults:
        raise ConfigError(*dict.fromkeys(faults))
    return config, validated(RouterConfig, _router(mesh, environ))


@dataclass(frozen=True, slots=True)
class _Section:
    """What one process will be told: its part of the mesh's configuration over the environment."""

    keys: Keys
    cls: type[VerifierConfig] | type[DraftConfig] | type[RouterConfig]
    given: Given

    def faults(self, ports: Ports) -> list[str]:
        """Its mistakes; `ports` are those that other sections listen on, and gets this one's."""
        try:
            config: VerifierConfig | DraftConfig | RouterConfig = validated(self.cls, self.given, self.keys, here=True)
        except ConfigError as error:
            return list(error.faults)
        try:
            check_server(config.server, [SERVICES[self.cls]])
            check_packages(config.telemetry)
            if isinstance(config, RouterConfig):
                Callers(config)
        except ConfigError as error:
            return [self.given.fault((), fault, self.keys) for fault in error.found]
        return list(self._taken(config, ports))

    def _taken(self, config: VerifierConfig | DraftConfig | RouterConfig, ports: Ports) -> Iterator[str]:
        server, telemetry = config.server, config.telemetry
        listening = {
            ("server", "port"): (server.host, server.port),
            ("server", "health_port"): (server.host, server.health_port),
            ("telemetry", "prometheus_port"): (telemetry.prometheus_host, telemetry.prometheus_port),
        }
        for keys, (host, port) in listening.items():
            if not port:
                continue
            name = ".".join((*self.keys, *keys))
            others = ports.setdefault(port, {})
            other = next((each for each, there in others.items() if _meet(there, host)), "")
            others[name] = host
            if other:
                yield self.given.fault(keys, f"{port} is {other} too", self.keys)
            elif name != ".".join(ROUTER_PORT) and (fault := listening_fault(host, port)):
                yield self.given.fault(keys, f"cannot listen on {host}:{port}: {fault}", self.keys)


def _meet(host: str, other: str) -> bool:
    """Whether two that listen on the same port are in each other's way."""
    return host == other or not {host.strip("[]"), other.strip("[]")}.isdisjoint(EVERY_HOST)


def _sections(mesh: Given, environ: Mapping[str, str]) -> Iterator[_Section]:
    verifier = Given()
    verifier.add_environment(environ, "SPECMESH_VERIFIER")
    verifier.add(mesh, ("verifier",))
    yield _Section(("verifier",), VerifierConfig, verifier)
    for index, draft in _drafts(mesh):
        given = Given()
        given.add_environment(environ, "SPECMESH_DRAFT")
        settings = {key: value for key, value in draft.items() if key not in DraftProcess.model_fields}
        given.add_table(settings, " and ".join(mesh.origins(("drafts",))))
        yield _Section(("drafts", str(index)), DraftConfig, given)
    yield _Section(("router",), RouterConfig, _router(mesh, environ))


def _router(mesh: Given, environ: Mapping[str, str]) -> Given:
    router = Given()
    router.add_environment(environ, "SPECMESH_ROUTER")
    router.add(mesh, ("router",))
    pools = dict.fromkeys(pool for _, draft in _drafts(mesh) if re.fullmatch(POOL_NAME, pool := str(draft.get("pool"))))
    filled_in = [{"name": pool, "addresses": [NOBODY]} for pool in pools]
    router.add_table({"verifiers": [NOBODY], "pools": filled_in}, "drafts")
    return router


def _drafts(mesh: Given) -> list[tuple[int, Mapping[str, Any]]]:
    """Those that are tables, each with its place in the list; of what is none the mesh's own form tells."""
    drafts = mesh.tree.get("drafts")
    places = enumerate(drafts) if isinstance(drafts, list) else ()
    return [(index, draft) for index, draft in places if isinstance(draft, Mapping)]
